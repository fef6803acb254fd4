/* What the programs about idle memory share: memory to free, and checks of whether it went back. */
#ifndef NEAP_TESTS_PURGE_H
#define NEAP_TESTS_PURGE_H

#include "check.h"
#include <dirent.h>
#include <time.h>

/* Free memory must be back within a second once it is idle. A machine under load may need longer: only memory that does
   not go back by itself fails a test; a late one is reported. A program that is never idle keeps memory that it took
   again soon after it had gone back, for two windows of 10 s; under load any program may have done so. */
enum { GOAL_MS = 1000, PATIENCE_MS = 60000 };

static inline long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static inline void nap(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t)) {}
}

/* Threads of this process as the kernel counts them, including those that the C library does not know. */
static inline long threads(void) { return status_kib("Threads:"); }

/* Waits until `cond` holds; fails after `ms`. */
#define WAIT_FOR(cond, ms)                                                                             \
    do {                                                                                               \
        for (long end_ = now_ms() + (ms); !(cond); nap(5)) CHECK(now_ms() < end_ && #cond);            \
    } while (0)

/* Waits until RSS is below `kib`; reports a missed goal, fails after PATIENCE_MS. */
static inline void wait_for_rss(long kib) {
    long start = now_ms();
    while (status_kib("VmRSS:") > kib) {
        CHECK_AT(now_ms() - start < PATIENCE_MS, status_kib("VmRSS:"));
        nap(10);
    }
    long took = now_ms() - start;
    if (took > GOAL_MS) printf("back after %ld ms, the goal is %d\n", took, GOAL_MS);
}

/* `count` blocks of random sizes from `low` to `high`, written and freed. */
static inline void garbage(size_t count, size_t low, size_t high) {
    uint64_t seed = count + high;
    char **p = malloc(count * sizeof *p);
    CHECK(p);
    for (size_t i = 0; i < count; i++) {
        size_t size = low + next_random(&seed) % (high - low + 1);
        p[i] = malloc(size);
        CHECK_AT(p[i], i);
        memset(p[i], 1, size);
    }
    for (size_t i = 0; i < count; i++) free(p[i]);
    free(p);
}
/* 200 MiB of each kind. */
static inline void garbage_large(void) { garbage(100, 1 << 20, 3 << 20); }
static inline void garbage_small(void) { garbage(400000, 24, 1000); }
static inline void garbage_mixed(void) {
    garbage(200000, 24, 1000);
    garbage(100, 64 << 10, 1 << 20);
    garbage(3, 20 << 20, 20 << 20);
}

/* Frees memory, and waits until the helper runs. */
static inline void with_helper(void) {
    garbage_large();
    /* A helper that had nothing to do for a second, while this thread did not run, has ended again. */
    for (long end = now_ms() + PATIENCE_MS; strict() && threads() != 2; nap(5)) {
        CHECK(now_ms() < end);
        garbage_large();
    }
}

/* Reused memory from calloc must be zero. */
static inline void check_zeroed_up_to(size_t most) {
    for (size_t size = 100; size <= most; size *= 5) {
        for (int i = 0; i < 3; i++) {
            unsigned char *p = calloc(1, size);
            CHECK_AT(p, size);
            for (size_t at = 0; at < size; at += at < 8192 ? 1 : 97) CHECK_AT(p[at] == 0, size);
            memset(p, 7, size);
            free(p);
        }
    }
}
static inline void check_zeroed(void) { check_zeroed_up_to(64u << 20); }

#endif
