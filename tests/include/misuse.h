/* What the misuse programs share. Each prints the address that it is about to misuse, then misuses it. */
#ifndef NEAP_TESTS_MISUSE_H
#define NEAP_TESTS_MISUSE_H

#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static inline void *free_it(void *p) {
    free(p);
    return NULL;
}

/* Makes a block of 64 bytes, with live blocks around it; returns it through `where`. */
static inline void *make_it(void *where) {
    static void *around[200];
    for (int i = 0; i < 200; i++) around[i] = malloc(64);
    *(void **)where = around[100];
    return NULL;
}
static inline void *make_it_and_free(void *where) {
    make_it(where);
    free(*(void **)where);
    return NULL;
}

/* Runs f in a thread of its own, to its end. */
static inline void in_thread(void *(*f)(void *), void *arg) {
    pthread_t t;
    if (pthread_create(&t, NULL, f, arg) || pthread_join(t, NULL)) abort();
}

/* A freed block of 64 bytes, printed, whose OS page went back to the system together with its tag. */
static inline char *make_purged(void) {
    static char *p[20000];
    for (int i = 0; i < 20000; i++) memset(p[i] = malloc(64), 1, 64);
    for (int i = 0; i < 20000; i++)
        if (i % 1000) free(p[i]);
    malloc_trim(0);
    dprintf(1, "%p\n", (void *)p[10500]);
    return p[10500];
}

/* Ordinary work with the same block size, in which a misuse that was only noted must be detected. */
static inline void churn(void) {
    static void *p[20000];
    for (int i = 0; i < 20000; i++) p[i] = malloc(64);
    for (int i = 0; i < 20000; i++) free(p[i]);
}

#endif
