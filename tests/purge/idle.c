/* Memory that was freed goes back while the program idles; the helper that does this starts late and does not stay. */
#include "filter.h"
#include "purge.h"
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Limit on what stays in any test: code, tables, what the C library holds. */
enum { LEFT_KIB = 16 << 10 };

static void back(void (*make)(void)) {
    make();
    CHECK(status_kib("VmHWM:") > 100 << 10);
    wait_for_rss(LEFT_KIB);
}
static void large(void) { back(garbage_large); }
static void small(void) { back(garbage_small); }
static void mixed(void) { back(garbage_mixed); }

/* The thread that freed memory is in a system call, and no other thread runs. */
static void *free_then_read(void *arg) {
    char byte;
    garbage_mixed();
    CHECK(read(*(int *)arg, &byte, 1) == 1);
    return NULL;
}
static void freeing_thread_blocks(void) {
    int ends[2];
    pthread_t t;
    CHECK(pipe(ends) == 0 && pthread_create(&t, NULL, free_then_read, &ends[0]) == 0);
    WAIT_FOR(status_kib("VmHWM:") > 100 << 10, PATIENCE_MS);
    WAIT_FOR(status_kib("VmRSS:") < LEFT_KIB, PATIENCE_MS);
    CHECK(write(ends[1], "x", 1) == 1 && pthread_join(t, NULL) == 0);
}

/* Some large blocks that stay in their thread's cache when it frees them, and nothing else. */
static void blocks_at_hand(void) {
    enum { BLOCKS = 7, SIZE = 256 << 10 };
    char *p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((p[i] = malloc(SIZE)));
        memset(p[i], 1, SIZE);
    }
    long full = status_kib("VmRSS:");
    for (int i = 0; i < BLOCKS; i++) free(p[i]);
    WAIT_FOR(status_kib("VmRSS:") < full - (1 << 10), PATIENCE_MS);
}

/* 200 threads that each freed some blocks of every class into their caches, and then sleep. */
enum { IDLE = 200 };
static pthread_barrier_t filled, over;
static void *fill_caches(void *arg) {
    char *p[64];
    for (size_t size = 16; size <= 32 << 10; size *= 2) {
        int n = size <= 4096 ? 64 : 8;
        for (int i = 0; i < n; i++) {
            CHECK((p[i] = malloc(size)));
            memset(p[i], 1, size);
        }
        for (int i = 0; i < n; i++) free(p[i]);
    }
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&over);
    return arg;
}
static void caches_of_idle_threads(void) {
    static pthread_t t[IDLE];
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 64 << 10) == 0);
    pthread_barrier_init(&filled, NULL, IDLE + 1);
    pthread_barrier_init(&over, NULL, IDLE + 1);
    for (int i = 0; i < IDLE; i++) CHECK(pthread_create(&t[i], &attr, fill_caches, NULL) == 0);
    pthread_barrier_wait(&filled);
    printf("RSS %ld KiB with full caches\n", status_kib("VmRSS:"));
    /* For each thread, three OS pages of stack and the heap itself stay. */
    wait_for_rss(LEFT_KIB + IDLE * 24);
    printf("RSS %ld KiB when they were idle\n", status_kib("VmRSS:"));
    pthread_barrier_wait(&over);
    for (int i = 0; i < IDLE; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Blocks that live until the helper has ended, and then all fit into the caches: no free starts a helper. */
enum { QUIETLY = 300, EACH = 60, SIZES = 3 };
static void *free_quietly(void *arg) {
    char *p[SIZES][EACH];
    for (int k = 0; k < SIZES; k++)
        for (int i = 0; i < EACH; i++) memset(p[k][i] = malloc(600 + 128 * k), 1, 600);
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&filled);
    for (int k = 0; k < SIZES; k++)
        for (int i = 0; i < EACH; i++) free(p[k][i]);
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&over);
    return arg;
}
static void caches_filled_late(void) {
    static pthread_t t[QUIETLY];
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 64 << 10) == 0);
    pthread_barrier_init(&filled, NULL, QUIETLY + 1);
    pthread_barrier_init(&over, NULL, QUIETLY + 1);
    for (int i = 0; i < QUIETLY; i++) CHECK(pthread_create(&t[i], &attr, free_quietly, NULL) == 0);
    pthread_barrier_wait(&filled);
    WAIT_FOR(threads() == QUIETLY + 1, PATIENCE_MS);
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&filled);
    printf("RSS %ld KiB with full caches\n", status_kib("VmRSS:"));
    wait_for_rss(LEFT_KIB + QUIETLY * 32);
    printf("RSS %ld KiB when they were idle\n", status_kib("VmRSS:"));
    pthread_barrier_wait(&over);
    for (int i = 0; i < QUIETLY; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

static void helper_comes_and_goes(void) {
    CHECK(threads() == 1);
    for (int round = 0; round < 2; round++) {
        with_helper();
        WAIT_FOR(threads() == 1, PATIENCE_MS);
        CHECK(status_kib("VmRSS:") < LEFT_KIB);
    }
}
/* Less than 1 MiB waits: no helper starts, however often that happens. */
static void little_memory(void) {
    for (int round = 0; round < 300; round++) {
        garbage(20, 16, 8 << 10);
        garbage(4, 40 << 10, 100 << 10);
        CHECK_AT(threads() == 1, round);
        if (round % 30 == 0) nap(20);
    }
}
static void never(void) {
    garbage_mixed();
    nap(300);
    CHECK(threads() == 1);
    if (strict()) CHECK(status_kib("VmRSS:") > 100 << 10);
}

/* The process ends at once, whatever the helper does. */
static void exit_is_prompt(void) {
    for (int round = 0; round < 8; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            garbage_large();
            nap(round * 20);
            exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    with_helper();
    long start = now_ms();
    pid_t pid = fork();
    if (pid == 0) {
        with_helper();
        _exit(0);
    }
    CHECK(waitpid(pid, NULL, 0) == pid);
    CHECK_AT(now_ms() - start < PATIENCE_MS, now_ms() - start);
}

/* The library is loaded, used and closed: it stays loaded, because its helper may run. */
static void loaded_late(void) {
    void *lib = dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    CHECK(lib);
    void *(*take)(size_t) = (void *(*)(size_t))dlsym(lib, "malloc");
    void (*give)(void *) = (void (*)(void *))dlsym(lib, "free");
    CHECK(take && give);
    static char *p[200];
    long with = 0;
    /* As in with_helper: it may have ended again before this check. */
    for (long end = now_ms() + PATIENCE_MS; with != 2;) {
        CHECK(now_ms() < end);
        for (int i = 0; i < 200; i++) {
            CHECK((p[i] = take(1 << 20)));
            memset(p[i], 1, 1 << 20);
        }
        for (int i = 0; i < 200; i++) give(p[i]);
        with = threads();
    }
    CHECK(dlclose(lib) == 0);
    wait_for_rss(LEFT_KIB);
    WAIT_FOR(threads() == 1, PATIENCE_MS);
}

/* The program's own filter was set before the library was loaded, which therefore did not notice it. */
static void loaded_late_under_filter(void) {
    static const int UNUSUAL[] = {SYS_clone, SYS_membarrier, SYS_ioctl, SYS_process_madvise, SYS_memfd_create};
    filter(none_of(UNUSUAL, sizeof UNUSUAL / sizeof *UNUSUAL, SECCOMP_RET_KILL_PROCESS));
    void *lib = dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    CHECK(lib);
    void *(*take)(size_t) = (void *(*)(size_t))dlsym(lib, "malloc");
    void (*give)(void *) = (void (*)(void *))dlsym(lib, "free");
    CHECK(take && give);
    for (int round = 0; round < 3; round++) {
        static char *p[200];
        for (int i = 0; i < 200; i++) CHECK((p[i] = take(1 << 20)));
        for (int i = 0; i < 200; i++) memset(p[i], 1, 1 << 20);
        for (int i = 0; i < 200; i++) give(p[i]);
    }
}

/* The C library does not count the helper: the process ends when the main thread and the last other one have ended. */
static void *last(void *arg) {
    garbage_large();
    nap(50);
    return arg;
}
static void at_end(void) { dprintf(1, "atexit handler ran\nok\n"); }
static void last_thread_ends(void) {
    pthread_t t;
    with_helper();
    CHECK(atexit(at_end) == 0 && pthread_create(&t, NULL, last, NULL) == 0);
    pthread_exit(NULL);
}

/* No helper can be started: the threads that free memory are the purger. */
static void no_more_threads(void) {
    struct rlimit none = {1, 1};
    /* The limit does not count for root. */
    if (geteuid() == 0) CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    pthread_t t;
    if (pthread_create(&t, NULL, last, NULL) == 0) SKIP("RLIMIT_NPROC does not limit threads here");
    garbage_mixed();
    check_zeroed();
    CHECK(threads() == 1);
    for (long end = now_ms() + PATIENCE_MS; status_kib("VmRSS:") > 2 * LEFT_KIB; nap(10)) {
        garbage(5, 40 << 10, 100 << 10);
        CHECK(now_ms() < end);
    }
}

static const struct test_case CASES[] = {
    CASE(large),          CASE(small),          CASE(mixed),
    CASE(blocks_at_hand), CASE(little_memory),  CASE(never),
    CASE(exit_is_prompt), CASE(no_more_threads), CASE(last_thread_ends),
    CASE(loaded_late),    CASE(loaded_late_under_filter), CASE(freeing_thread_blocks), CASE(caches_of_idle_threads),
    CASE(helper_comes_and_goes), CASE(caches_filled_late),
};
TEST_MAIN(CASES)
