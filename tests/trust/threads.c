/* Threads whose first call comes as they end: the C library frees what belongs to a thread after its key destructors. */
#include "trust.h"

static void *wait_a_little(void *unused) {
    usleep(2000);
    return unused;
}

static void burst(size_t stack) {
    pthread_attr_t attributes;
    pthread_t t;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
    if (stack) CHECK(pthread_attr_setstacksize(&attributes, stack) == 0);
    for (int i = 0; i < 20; i++) CHECK(pthread_create(&t, &attributes, wait_a_little, NULL) == 0);
    pthread_attr_destroy(&attributes);
}

/* A detached thread that never allocated frees while it ends, then its stack is unmapped: it must not leave a seat
   that is still written to. Work in between makes the purger visit all heaps. */
static void detached(void) {
    static char *p[2000];
    for (long end = now_ms() + trial_ms(5000); now_ms() < end;) {
        burst(0);
        usleep(30000);
        for (int i = 0; i < 2000; i++) {
            p[i] = malloc(1000 + (size_t)i);
            CHECK(p[i]);
            memset(p[i], 1, 1000);
        }
        for (int i = 0; i < 2000; i++) free(p[i]);
    }
}

/* The same threads must not each leave a heap behind: 6,000 of them would keep 18 MiB. */
static void detached_leave_nothing(void) {
    long before = 0;
    for (int round = 0; round <= 400; round++) {
        if (round == 100) before = status_kib("VmRSS:");
        burst(8 << 20);
        usleep(8000);
    }
    nap(500);
    long after = status_kib("VmRSS:");
    printf("RSS %ld KiB after 2,000 threads, %ld after 8,000\n", before, after);
    CHECK_AT(after - before < 4096, after - before);
}

static const struct test_case cases[] = {CASE(detached), CASE(detached_leave_nothing)};
TEST_MAIN(cases)
