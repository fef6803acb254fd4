/* Memory limits: of a container, and of neap's own option. */
#include "purge.h"
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

/* `mib` MiB in blocks, half of them large, half small; written, then freed. */
static void peak(long mib) {
    enum { SMALL = 900, LARGE = 600 << 10 };
    void **list = NULL;
    for (long i = 0, bytes = 0; bytes < mib << 20; i++) {
        size_t size = i % 600 ? SMALL : LARGE;
        void **p = malloc(size);
        CHECK_AT(p, bytes);
        memset(p, 1, size);
        *p = list;
        list = p;
        bytes += size;
    }
    while (list) {
        void **next = *list;
        free(list);
        list = next;
    }
}

/* One process reaches its peak, frees, and idles; the next one starts 200 ms later, because a helper may have to wait
 * for a processor. PEAK_MIB sets the peak. */
static pid_t start_peak(const char *mib, int *said) {
    int ends[2];
    pid_t pid;
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0 && pipe(ends) == 0);
    self[n] = 0;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_addclose(&files, ends[0]);
    posix_spawn_file_actions_addclose(&files, ends[1]);
    char *args[] = {self, "peak", (char *)mib, NULL};
    CHECK(posix_spawn(&pid, self, &files, NULL, args, environ) == 0);
    close(ends[1]);
    *said = ends[0];
    return pid;
}
static void relay(void) {
    enum { RUNNERS = 4 };
    const char *mib = getenv("PEAK_MIB");
    CHECK(mib);
    pid_t pid[RUNNERS];
    for (int i = 0; i < RUNNERS; i++) {
        int said;
        char byte;
        pid[i] = start_peak(mib, &said);
        /* End of the file: the process was killed. */
        CHECK_AT(read(said, &byte, 1) == 1, i);
        nap(200);
    }
    for (int i = 0; i < RUNNERS; i++) {
        CHECK_AT(waitpid(pid[i], NULL, WNOHANG) == 0, i);
        kill(pid[i], 9);
        CHECK(waitpid(pid[i], NULL, 0) == pid[i]);
    }
}

/* Runs with NEAP_LIMIT=64M. */
enum { LIMIT_MIB = 64 };
static long until_null(size_t size, void ***list, long most) {
    long n = 0;
    for (; n < most; n++) {
        errno = 0;
        void **p = malloc(size);
        if (!p) {
            CHECK_AT(errno == ENOMEM, size);
            return n;
        }
        memset(p, 1, size);
        *p = *list;
        *list = p;
    }
    return n;
}
static void give_back(void ***list) {
    while (*list) {
        void **next = **list;
        free(*list);
        *list = next;
    }
}
static void own_limit(void) {
    void **list = NULL;
    for (int round = 0; round < 2; round++) {
        for (size_t size = 100; size <= 40u << 20; size *= 13) {
            size_t most = (4ul * LIMIT_MIB << 20) / size;
            size_t bytes = until_null(size, &list, most) * size;
            CHECK_AT(bytes <= (size_t)LIMIT_MIB << 20, size);
            CHECK_AT(bytes >= (size_t)LIMIT_MIB << 19 || size > 16u << 20, size);
            CHECK_AT(calloc(1, 100u << 20) == NULL && errno == ENOMEM, size);
            CHECK_AT(status_kib("VmRSS:") < (LIMIT_MIB + 16) << 10, status_kib("VmRSS:"));
            give_back(&list);
            char *p = malloc(20u << 20);
            CHECK_AT(p, size);
            free(p);
        }
    }
    check_zeroed_up_to(16u << 20);
}
static void no_limit(void) {
    void **list = NULL;
    CHECK(until_null(1u << 20, &list, 4 * LIMIT_MIB) == 4 * LIMIT_MIB);
    give_back(&list);
    wait_for_rss(16 << 10);
}

/* Bytes charged to the cgroup of this process. */
static size_t charged_bytes(void) {
    const char *name = getenv("CHARGED");
    CHECK(name);
    FILE *f = fopen(name, "r");
    size_t bytes = 0;
    CHECK(f && fscanf(f, "%zu", &bytes) == 1);
    fclose(f);
    return bytes;
}

/* Runs with NEAP_HUGE=always. Blocks in huge pages, few of which stay live: the charge must fall as well. */
static void charged(void) {
    enum { BLOCKS = 500000, KEEP = 500 };
    static char *block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) memset(block[i] = malloc(250), 1, 250);
    size_t full = charged_bytes();
    CHECK_AT(full > (size_t)100 << 20, full);
    for (int i = 0; i < BLOCKS; i++)
        if (i % KEEP) free(block[i]);
    wait_for_rss(24 << 10);
    size_t left = charged_bytes();
    for (int tenths = 0; tenths < 20 && left > (size_t)24 << 20; tenths++) nap(100), left = charged_bytes();
    CHECK_AT(left <= (size_t)24 << 20, left);
    for (int i = 0; i < BLOCKS; i += KEEP) CHECK_AT(block[i][0] == 1 && block[i][249] == 1, i);
}

/* LIVE_MIB in blocks of mixed sizes, most of the bytes in large ones, that four threads replace at random. */
static void *replace_at_random(void *arg) {
    enum { MOST = 20000, ROUNDS = 60000 };
    struct block {
        unsigned char *p;
        size_t n;
    } *block = calloc(MOST, sizeof *block);
    size_t live = 0, count = 0, most = ((size_t)atol(getenv("LIVE_MIB")) << 20) / 4;
    uint64_t seed = (uintptr_t)arg * 77 + 1;
    CHECK(block);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t r = next_random(&seed);
        size_t n = 16 + (r % 8 ? (r >> 8) % 3000 : (r >> 8) % 100000);
        while (live + n > most || count == MOST) {
            struct block *b = &block[next_random(&seed) % count];
            CHECK_AT(b->p[0] == (unsigned char)b->n && b->p[b->n - 1] == (unsigned char)b->n, b->n);
            live -= b->n;
            free(b->p);
            *b = block[--count];
        }
        unsigned char *p = malloc(n);
        CHECK_AT(p, n);
        memset(p, (unsigned char)n, n);
        block[count++] = (struct block){p, n};
        live += n;
        if (i % (ROUNDS / 4) == 0) nap(100);
    }
    while (count) free(block[--count].p);
    free(block);
    return NULL;
}
static void mixed_sizes(void) {
    pthread_t thread[4];
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&thread[i], NULL, replace_at_random, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static const struct test_case CASES[] = {CASE(mixed_sizes), CASE(relay), CASE(charged), CASE(own_limit), CASE(no_limit)};
int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "peak") == 0) {
        peak(atol(argv[2]));
        CHECK(write(1, "x", 1) == 1);
        for (;;) pause();
    }
    return run_cases(argc, argv, CASES, sizeof CASES / sizeof *CASES);
}
