/* Correct programs: with guards, each call does what it does without. Most blocks up to an OS page are guarded, as far
 * as the pool has room. */
#include "check.h"
#include "filter.h"
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

/* A guarded block has exactly the requested bytes; otherwise 500 bytes get 512. */
static int is_guarded(void *p) { return malloc_usable_size(p) == 500; }
static void some_are_guarded(void) {
    int guarded = 0;
    for (int i = 0; i < 20; i++) {
        void *p = malloc(500);
        guarded += is_guarded(p);
        free(p);
    }
    CHECK_AT(guarded >= 15 || getenv("FEWER"), guarded);
}

static void each_call(void) {
    some_are_guarded();
    for (size_t size = 0; size <= 4096; size += size < 64 ? 1 : 61) {
        char *p = malloc(size);
        CHECK(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= size);
        fill(p, size, size);
        size_t now = size;
        for (int i = 0; i < 4; i++) {
            size_t more = i & 1 ? now * 3 + 1 : now / 3 + 1;
            p = realloc(p, more);
            CHECK_AT(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= more, more);
            CHECK_FILL(p, more < now ? more : now, size);
            fill(p, more, size);
            now = more;
        }
        free(p);
    }
    for (size_t size = 1; size <= 4096; size += 97) {
        char *p = calloc(1, size);
        for (size_t i = 0; i < size; i++) CHECK_AT(!p[i], i);
        memset(p, 9, size);
        free(p);
        for (size_t align = 8; align <= 8192; align *= 2) {
            void *q;
            CHECK(!posix_memalign(&q, align, size));
            CHECK_AT((uintptr_t)q % align == 0, align);
            memset(q, 1, size);
            free(q);
            q = aligned_alloc(align, size);
            CHECK_AT((uintptr_t)q % align == 0, align);
            q = reallocarray(q, 2, size);
            memset(q, 1, 2 * size);
            free(q);
        }
    }
    char *copy = strdup("a string that is copied");
    CHECK(!strcmp(copy, "a string that is copied"));
    free(copy);
    CHECK(!realloc(malloc(30), 0));
}

#define SLOTS 400
static void *work(void *seed) {
    uint64_t state = (uintptr_t)seed + 1;
    static _Atomic(char *) shared[64];
    char *kept[SLOTS] = {0};
    size_t sizes[SLOTS];
    for (int round = 0; round < 60000; round++) {
        uint64_t random = next_random(&state);
        int i = random % SLOTS;
        size_t size = (random >> 20) % 5000;
        if (!kept[i]) {
            kept[i] = random & 1 << 16 ? malloc(size) : calloc(1, size);
            CHECK(kept[i]);
            fill(kept[i], size, (uintptr_t)i);
            sizes[i] = size;
        } else if (random & 1 << 17) {
            kept[i] = realloc(kept[i], size + 1);
            CHECK_FILL(kept[i], size + 1 < sizes[i] ? size + 1 : sizes[i], (uintptr_t)i);
            sizes[i] = size + 1;
            fill(kept[i], sizes[i], (uintptr_t)i);
        } else {
            CHECK_FILL(kept[i], sizes[i], (uintptr_t)i);
            /* Another thread frees it. */
            free(atomic_exchange(&shared[random >> 40 & 63], kept[i]));
            kept[i] = NULL;
        }
    }
    for (int i = 0; i < SLOTS; i++) free(kept[i]);
    return NULL;
}
static void threads(void) {
    pthread_t all[4];
    for (int round = 0; round < 3; round++) {
        for (uintptr_t i = 0; i < 4; i++) CHECK(!pthread_create(&all[i], NULL, work, (void *)(i + round)));
        for (int i = 0; i < 4; i++) CHECK(!pthread_join(all[i], NULL));
    }
}

static void forks(void) {
    char *p[30];
    for (int i = 0; i < 30; i++) p[i] = malloc(500), fill(p[i], 500, i);
    CHECK(is_guarded(p[0]) || getenv("FEWER"));
    for (int round = 0; round < 20; round++) {
        pid_t child = round & 1 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!child) {
            for (int i = 0; i < 30; i++) { CHECK_FILL(p[i], 500, i); free(p[i]); }
            some_are_guarded();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_AT(status == 0, status);
    }
    /* A block that was freed before the fork is inaccessible in the child too: see forked_use_after_free. */
    for (int i = 0; i < 30; i++) { CHECK_FILL(p[i], 500, i); free(p[i]); }
}
static void forked_use_after_free(void) {
    char *volatile p = malloc(500);
    CHECK(is_guarded(p));
    free(p);
    pid_t child = fork();
    if (!child) {
        p[3] = 1;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, status);
}

static _Atomic(char *) handed[16];
static void on_alarm(int signal) {
    (void)signal;
    static uint64_t state = 77;
    uint64_t random = next_random(&state);
    size_t size = random % 3000;
    char *p = malloc(size);
    CHECK(p);
    fill(p, size, 5);
    free(atomic_exchange(&handed[random >> 30 & 15], p));
}
static void signals(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    uint64_t state = 5;
    for (int i = 0; i < 400000; i++) {
        char *p = malloc(next_random(&state) % 3000 + 1);
        free(atomic_exchange(&handed[i & 15], p));
    }
    CHECK(!setitimer(ITIMER_REAL, &never, NULL));
}

/* What a program changes on an OS page of its block must not affect the next block there. */
static void protected_page(void) {
    for (int i = 0; i < 150; i++) {
        char *p = aligned_alloc(4096, 4080);
        memset(p, 1, 4080);
        /* Only in this case does a program own a whole OS page. */
        if (malloc_usable_size(p) != 4080) {
            free(p);
            continue;
        }
        if (i % 3 == 0) CHECK(!mprotect(p, 4096, i & 1 ? PROT_READ : PROT_NONE));
        if (i % 3 == 1) CHECK(!madvise(p, 4096, MADV_DONTFORK) || getenv("FEWER"));
        free(p);
    }
    some_are_guarded();
}
static void locked(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) SKIP("may not lock memory");
    for (int i = 0; i < 1000; i++) {
        char *p = malloc(500);
        memset(p, 1, 500);
        free(p);
    }
    munlockall();
}
static void many_live(void) {
    static char *p[1000];
    for (int i = 0; i < 1000; i++) p[i] = malloc(500), fill(p[i], 500, i);
    int guarded = 0;
    for (int i = 0; i < 1000; i++) guarded += is_guarded(p[i]);
    CHECK_AT(guarded > 40 && guarded <= 64, guarded);
    for (int i = 0; i < 1000; i++) { CHECK_FILL(p[i], 500, i); free(p[i]); }
    some_are_guarded();
}
/* The memory that guards take, by the kernel's figures. */
static void memory(void) {
    static char *p[1000];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 1000; i++) p[i] = malloc(500), fill(p[i], 500, i);
        for (int i = 0; i < 1000; i++) free(p[i]);
    }
    for (int i = 0; i < 1000; i++) p[i] = malloc(500);
    printf("%ld\n", status_kib("RssAnon:"));
}
/* The kernel refuses a call that would need one more mapping. */
static void few_mappings(void) {
    some_are_guarded();
    void *p[40];
    for (int i = 0; i < 40; i++) p[i] = malloc(500);
    for (int i = 0; i < 40; i++) free(p[i]);
    size_t pages = 140000;
    char *many = mmap(NULL, pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(many != MAP_FAILED);
    size_t i = 0;
    while (i < pages && !mprotect(many + i * 4096, 4096, PROT_READ)) i += 2;
    CHECK(i < pages);
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 40; i++) p[i] = malloc(500), fill(p[i], 500, i);
        for (int i = 0; i < 40; i++) { CHECK_FILL(p[i], 500, i); free(p[i]); }
    }
    CHECK(!munmap(many, pages * 4096));
    some_are_guarded();
}
/* A sandbox that ends the process for rare madvise advice, and for gettid. */
static void filtered(void) {
    static struct sock_filter code[] = {
        FILTER_NUMBER,
        FILTER_CALL(__NR_gettid, SECCOMP_RET_KILL_PROCESS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 100, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    char *p[30];
    for (int i = 0; i < 30; i++) p[i] = malloc(500), fill(p[i], 500, i);
    CHECK(is_guarded(p[0]));
    filter(&program);
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 30; i++) {
            CHECK_FILL(p[i], 500, i);
            free(p[i]);
            p[i] = malloc(500);
            fill(p[i], 500, i);
        }
    }
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 30; i++) free(p[i]);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(status == 0, status);
}
/* With an interval of 100,000 bytes, 500 bytes are guarded with a probability of 0.499 %. */
static void rate(void) {
    int guarded = 0;
    for (int i = 0; i < 200000; i++) {
        void *p = malloc(500);
        guarded += is_guarded(p);
        free(p);
    }
    printf("%d\n", guarded);
    CHECK_AT(guarded > 998 - 160 && guarded < 998 + 160, guarded);
}

static const struct test_case cases[] = {
    CASE(each_call), CASE(threads), CASE(forks), CASE(forked_use_after_free), CASE(signals), CASE(protected_page),
    CASE(locked), CASE(many_live), CASE(memory), CASE(few_mappings), CASE(filtered), CASE(rate),
};
TEST_MAIN(cases)
