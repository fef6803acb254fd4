/* What the programs about rare faults share: how long to run, and a watch over threads that must make progress. */
#ifndef NEAP_TESTS_TRUST_H
#define NEAP_TESTS_TRUST_H

#include "purge.h"
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Milliseconds to run: `usual`, or what NEAP_SOAK sets. */
static inline long trial_ms(long usual) {
    const char *soak = getenv("NEAP_SOAK");
    return soak ? atol(soak) * 1000 : usual;
}

/* A block that was written. */
static inline char *filled(size_t size) {
    char *p = malloc(size);
    CHECK_AT(p, size);
    memset(p, 1, size);
    return p;
}

/* Allocates `count` written blocks of `size` bytes and frees them. */
static inline void fill_and_free(int count, size_t size) {
    char *p[count];
    for (int i = 0; i < count; i++) p[i] = filled(size);
    for (int i = 0; i < count; i++) free(p[i]);
}

/* A thread hangs if it makes no progress while the watcher wakes this often: load on the machine delays both. */
enum { WATCH_MS = 20, HANG_WAKES = 300 };

/* Counters of progress, one for each watched thread. */
struct progress {
    atomic_long beats[8];
};

/* Fails where one of `count` counters stops, within `ms` or at the end of it; returns early once `stop` is set. */
static inline void watch_progress(struct progress *of, int count, long ms, atomic_int *stop) {
    long seen[8], wakes[8] = {0}, end = now_ms() + ms;
    int waiting = 1;
    for (int i = 0; i < count; i++) seen[i] = atomic_load(&of->beats[i]);
    while ((now_ms() < end || waiting) && !(stop && atomic_load(stop))) {
        nap(WATCH_MS);
        waiting = 0;
        for (int i = 0; i < count; i++) {
            long now = atomic_load(&of->beats[i]);
            wakes[i] = now == seen[i] ? wakes[i] + 1 : 0;
            seen[i] = now;
            waiting |= wakes[i] > 0;
            if (wakes[i] == HANG_WAKES) {
                /* dprintf would take a lock of the C library that a hanging fork may hold. */
                char text[80];
                int n = snprintf(text, sizeof text, "HANG: counter %d stands at %ld\n", i, now);
                if (write(2, text, (size_t)n) != n) abort();
                _exit(1);
            }
        }
    }
}

/* Whether a process was ended by a signal that a jump to a wrong address causes. */
static inline int has_crashed(int status) {
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return signal == SIGSEGV || signal == SIGTRAP || signal == SIGILL || signal == SIGBUS;
}

/* Runs `trial` in children of fork, one after the other, for `ms`; each must succeed, or may crash if `may_crash`. */
static inline void in_children(void (*trial)(void), long ms, int may_crash) {
    for (long end = now_ms() + ms; now_ms() < end;) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            trial();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_AT(status == 0 || (may_crash && has_crashed(status)), status);
    }
}

static inline pthread_t started(void *(*body)(void *), void *arg) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, body, arg) == 0);
    return t;
}

#endif
