/* Threads: their ends, storms of them, idle ones, and blocks that pass between them. */
#include "check.h"
#include <sched.h>
#include <stdatomic.h>

static char *some(size_t size, int seed) {
    char *p = malloc(size);
    CHECK(p);
    fill(p, size, seed);
    return p;
}
static pthread_t start(void *(*f)(void *), void *arg) {
    pthread_attr_t attr;
    pthread_t t;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 128 << 10) == 0);
    int rc = pthread_create(&t, &attr, f, arg);
    CHECK_AT(rc == 0, rc);
    pthread_attr_destroy(&attr);
    return t;
}

/* Destructors of thread keys allocate and free in every round, after those of the library. */
enum { KEYS = 40 };
static pthread_key_t keys[KEYS];
static atomic_int destroyed;
static void on_end(void *value) {
    struct { int round, key; } *was = value, now = {0, 0};
    now.round = was->round + 1;
    now.key = was->key;
    CHECK_FILL((char *)value + 8, 500, was->key);
    free(value);
    atomic_fetch_add(&destroyed, 1);
    free(some(2000 + now.key, 1));
    if (now.round < 4) {
        char *again = malloc(508);
        CHECK(again);
        memcpy(again, &now, 8);
        fill(again + 8, 500, now.key);
        CHECK(pthread_setspecific(keys[now.key], again) == 0);
    }
}
static void *with_keys(void *arg) {
    for (int i = 0; i < KEYS; i++) {
        int head[2] = {0, i};
        char *value = malloc(508);
        CHECK(value);
        memcpy(value, head, 8);
        fill(value + 8, 500, i);
        CHECK(pthread_setspecific(keys[i], value) == 0);
    }
    return arg;
}
static void key_destructors(void) {
    long before = 0;
    for (int i = 0; i < KEYS; i++) CHECK(pthread_key_create(&keys[i], on_end) == 0);
    for (int round = 0; round < 600; round++) {
        pthread_t t[4];
        for (int i = 0; i < 4; i++) t[i] = start(with_keys, NULL);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
        if (round == 200) before = status_kib("VmRSS:");
    }
    CHECK_AT(destroyed == 600 * 4 * KEYS * 4, destroyed);
    long grown = status_kib("VmRSS:") - before;
    printf("RSS grew by %ld KiB over 1,600 threads\n", grown);
    CHECK_AT(grown < 16384, grown);
}

/* Threads that allocate in destructors alone, so that they get a heap of their own in the third of the four rounds. */
static pthread_key_t late_key;
static void late_end(void *rounds) {
    for (int i = 0; i < 3; i++) free(some(100 + i, 1));
    if ((intptr_t)rounds > 1) CHECK(pthread_setspecific(late_key, (void *)((intptr_t)rounds - 1)) == 0);
}
static void *with_late_key(void *rounds) {
    CHECK(pthread_setspecific(late_key, rounds) == 0);
    return NULL;
}
static void late_heaps(void) {
    enum { COUNT = 2000 };
    long before = 0;
    free(some(100, 1));
    CHECK(pthread_key_create(&late_key, late_end) == 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK(pthread_join(start(with_late_key, (void *)4), NULL) == 0);
        if (i == COUNT / 10) before = status_kib("VmRSS:");
    }
    long grown = status_kib("VmRSS:") - before;
    printf("RSS grew by %ld KiB over 1,800 threads\n", grown);
    CHECK_AT(grown < 4096, grown);
}

/* 10,000 short threads, 20 at a time; each frees what an earlier one left. */
static char *_Atomic left[1000];
static void *short_life(void *arg) {
    uint64_t seed = (uintptr_t)arg * 77 + 1;
    char *mine[40];
    for (int i = 0; i < 40; i++) {
        mine[i] = some(next_random(&seed) % 1500 + 16, 40);
    }
    for (int i = 0; i < 20; i++) free(mine[i]);
    for (int i = 20; i < 40; i++) {
        char *old = atomic_exchange(&left[next_random(&seed) % 1000], mine[i]);
        if (old) {
            CHECK_FILL(old, 16, 40);
            free(old);
        }
    }
    return NULL;
}
static void storm(void) {
    long early = 0;
    for (uintptr_t round = 0; round < 500; round++) {
        pthread_t t[20];
        for (int i = 0; i < 20; i++) t[i] = start(short_life, (void *)(round * 20 + i));
        for (int i = 0; i < 20; i++) CHECK(pthread_join(t[i], NULL) == 0);
        if (round == 100) early = status_kib("VmRSS:");
    }
    long late = status_kib("VmRSS:");
    printf("RSS %ld KiB after 2,000 threads, %ld KiB after 10,000\n", early, late);
    CHECK_AT(late < early + 16384, late);
}

static void *detached_life(void *arg) {
    free(some(100, 1));
    atomic_fetch_add((atomic_int *)arg, 1);
    return NULL;
}
static void detached(void) {
    static atomic_int done;
    for (int i = 0; i < 2000; i++) {
        CHECK(pthread_detach(start(detached_life, &done)) == 0);
        while (done < i - 50) sched_yield();
    }
    while (done < 2000) usleep(1000);
}

/* 2,000 threads that wait; each allocated a little, and often enough to have a heap of its own, if IDLE_ALLOCATES is
 * set. Prints RSS. */
static pthread_barrier_t all_there, all_done;
static int allocates;
static void *idle_life(void *arg) {
    char *a = NULL, *b = NULL;
    if (allocates) {
        a = some(32, 1);
        b = some(64, 2);
        for (int i = 0; i < 16; i++) free(some(200, 3));
    }
    pthread_barrier_wait(&all_there);
    pthread_barrier_wait(&all_done);
    if (allocates) {
        CHECK_FILL(a, 32, 1);
        CHECK_FILL(b, 64, 2);
    }
    free(a);
    free(b);
    return arg;
}
static void idle(void) {
    enum { N = 2000 };
    static pthread_t t[N];
    allocates = getenv("IDLE_ALLOCATES") != NULL;
    pthread_barrier_init(&all_there, NULL, N + 1);
    pthread_barrier_init(&all_done, NULL, N + 1);
    for (int i = 0; i < N; i++) t[i] = start(idle_life, NULL);
    pthread_barrier_wait(&all_there);
    /* Not from status: some kernels update its figures in steps for each processor. */
    printf("RSS %ld\n", proc_kib("/proc/self/smaps_rollup", "Rss:"));
    fflush(stdout);
    pthread_barrier_wait(&all_done);
    for (int i = 0; i < N; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Blocks whose producer is gone when they are freed, resized and replaced. */
enum { BATCH = 3000 };
static void *produce(void *arg) {
    char **batch = arg;
    for (int i = 0; i < BATCH; i++) batch[i] = some(i % 900 + (i % 100 ? 0 : 70000), i);
    return NULL;
}
static void orphans(void) {
    static char *batch[4][BATCH];
    long before = 0;
    for (int round = 0; round < 60; round++) {
        pthread_t t[4];
        for (int k = 0; k < 4; k++) t[k] = start(produce, batch[k]);
        for (int k = 0; k < 4; k++) CHECK(pthread_join(t[k], NULL) == 0);
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < BATCH; i++) {
                size_t size = i % 900 + (i % 100 ? 0 : 70000);
                CHECK_FILL(batch[k][i], size, i);
                if (i % 5 == 0) {
                    batch[k][i] = realloc(batch[k][i], size + 300);
                    CHECK(batch[k][i]);
                    CHECK_FILL(batch[k][i], size, i);
                }
                free(batch[k][i]);
            }
        }
        if (round == 20) before = status_kib("VmRSS:");
    }
    long grown = status_kib("VmRSS:") - before;
    printf("RSS grew by %ld KiB over 160 producers\n", grown);
    CHECK_AT(grown < 32768, grown);
}

/* A ring of threads: each resizes or frees what its neighbour made. */
enum { RING = 4, DEPTH = 256 };
static struct queue { char *_Atomic slot[DEPTH]; } ring[RING];
static void *stage(void *arg) {
    int me = (int)(intptr_t)arg;
    struct queue *in = &ring[me], *out = &ring[(me + 1) % RING];
    uint64_t seed = me + 5;
    for (int step = 0; step < 300000; step++) {
        uint64_t r = next_random(&seed);
        char *p = atomic_exchange(&in->slot[r % DEPTH], NULL);
        if (p) {
            CHECK_FILL(p, 16, 99);
            if (r >> 40 & 1) {
                p = realloc(p, 16 + (r >> 20) % 3000);
                CHECK(p);
                CHECK_FILL(p, 16, 99);
            } else {
                free(p);
                p = NULL;
            }
        }
        if (!p) p = some(16, 99);
        free(atomic_exchange(&out->slot[(r >> 10) % DEPTH], p));
    }
    return NULL;
}
static void remote_ring(void) {
    pthread_t t[RING];
    for (intptr_t i = 0; i < RING; i++) t[i] = start(stage, (void *)i);
    for (int i = 0; i < RING; i++) CHECK(pthread_join(t[i], NULL) == 0);
    for (int i = 0; i < RING; i++)
        for (int k = 0; k < DEPTH; k++) free(ring[i].slot[k]);
}

/* One thread only makes, the other only frees: memory must come back to the maker. */
static char *_Atomic pipe_slot[512];
static void *only_free(void *arg) {
    for (int i = 0; i < 2000000; i++) {
        char *p;
        while (!(p = atomic_exchange(&pipe_slot[i % 512], NULL))) sched_yield();
        free(p);
    }
    return arg;
}
static void one_way(void) {
    pthread_t t = start(only_free, NULL);
    long before = 0;
    for (int i = 0; i < 2000000; i++) {
        char *p = malloc(200), *none = NULL;
        CHECK(p);
        p[0] = p[199] = 1;
        while (!atomic_compare_exchange_weak(&pipe_slot[i % 512], &none, p)) none = NULL, sched_yield();
        if (i == 100000) before = status_kib("VmRSS:");
    }
    CHECK(pthread_join(t, NULL) == 0);
    long grown = status_kib("VmRSS:") - before;
    CHECK_AT(grown < 16384, grown); /* 370 MiB if remote frees were lost */
}

/* Cancelled threads leave no lock behind. */
static void *until_cancelled(void *arg) {
    for (;;) {
        free(some(3000, 1));
        pthread_testcancel();
    }
    return arg;
}
static void cancelled(void) {
    for (int i = 0; i < 300; i++) {
        pthread_t t = start(until_cancelled, NULL);
        usleep(200);
        CHECK(pthread_cancel(t) == 0 && pthread_join(t, NULL) == 0);
        free(some(3000, 1));
    }
}

/* 1,000 threads with a block each of 20 sizes, 38 KiB in all: what a thread holds beyond its blocks. */
enum { CROWD = 1000, CROWD_BLOCKS = 20 };
static void *in_crowd(void *arg) {
    char *p[CROWD_BLOCKS];
    int seed = (int)(intptr_t)arg;
    for (int i = 0; i < CROWD_BLOCKS; i++) p[i] = some(50 + i * 200, seed + i);
    pthread_barrier_wait(&all_there);
    pthread_barrier_wait(&all_done);
    for (int i = 0; i < CROWD_BLOCKS; i++) {
        CHECK_FILL(p[i], 50 + i * 200, seed + i);
        free(p[i]);
    }
    return NULL;
}
static void crowd(void) {
    static pthread_t t[CROWD];
    long before = status_kib("VmRSS:");
    pthread_barrier_init(&all_there, NULL, CROWD + 1);
    pthread_barrier_init(&all_done, NULL, CROWD + 1);
    for (intptr_t i = 0; i < CROWD; i++) t[i] = start(in_crowd, (void *)i);
    pthread_barrier_wait(&all_there);
    long each = (status_kib("VmRSS:") - before) / CROWD;
    printf("RSS grew by %ld KiB for each thread\n", each);
    CHECK_AT(each < 70, each);
    pthread_barrier_wait(&all_done);
    for (int i = 0; i < CROWD; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Threads on the smallest stack: every path of the allocator has to fit. */
static void *on_small_stack(void *arg) {
    for (size_t size = 1; size < (64u << 20); size *= 4) {
        char *p = malloc(size), *q = calloc(1, size), *r = aligned_alloc(4096, size);
        CHECK_AT(p && q && r, size);
        p[size - 1] = q[size / 2] = r[0] = 1;
        p = realloc(p, size * 3 + 1);
        CHECK_AT(p && p[size - 1] == 1, size);
        free(p), free(q), free(r);
    }
    return arg;
}
static void small_stacks(void) {
    pthread_attr_t attr;
    pthread_t t;
    size_t least = sysconf(_SC_THREAD_STACK_MIN);
    for (int i = 0; i < 100; i++) {
        CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, least) == 0);
        CHECK(pthread_create(&t, &attr, on_small_stack, NULL) == 0 && pthread_join(t, NULL) == 0);
    }
}

static const struct test_case CASES[] = {
    CASE(key_destructors), CASE(storm),       CASE(detached), CASE(idle),
    CASE(orphans),         CASE(remote_ring), CASE(one_way),  CASE(cancelled),
    CASE(small_stacks),    CASE(late_heaps),  CASE(crowd),
};
TEST_MAIN(CASES)
