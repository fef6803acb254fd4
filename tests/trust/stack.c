/* How much stack the calls take, and threads with little stack. */
#include "trust.h"
#include "filter.h"
#include <limits.h>

enum { STACK = 256 << 10, MOST = 2048, PAINT = 0x5a };

static char *stack;
static void (*job)(void);
static size_t depth;

/* Paints the stack below, does the job, and finds how deep the job wrote. */
static void *measure(void *unused) {
    char here;
    char *top = (char *)(((uintptr_t)&here - 256) & ~(uintptr_t)15);
    for (volatile char *q = stack; q < top; q++) *q = PAINT;
    job();
    char *q = stack;
    while (q < top && *q == PAINT) q++;
    depth = (size_t)(top - q);
    return unused;
}

/* Near a limit some calls return NULL. */
static void *written(size_t size) {
    char *p = malloc(size);
    if (p) memset(p, 1, size);
    return p;
}

static void nothing(void) {}
static void first(void) { free(malloc(10)); }
static void large(void) {
    free(malloc(10));
    free(written(3 << 20));
}
static void zeroed(void) {
    for (int i = 0; i < 20; i++) {
        char *p = calloc(3, 300000);
        if (p) *p = 1;
        free(p);
    }
}
static void aligned(void) { free(memalign(65536, 1000)); }
static void resized(void) {
    void *p = malloc(100);
    for (size_t size = 200000; size <= 20000000; size *= 10) {
        void *q = realloc(p, size);
        if (q) p = q;
    }
    free(p);
}
static void many(void) {
    static void *p[5000];
    for (int r = 0; r < 3; r++) {
        for (size_t i = 0; i < 5000; i++) p[i] = malloc(16 + i * 7);
        for (int i = 0; i < 5000; i++) free(p[i]);
    }
}
static void purged(void) {
    for (int i = 0; i < 30; i++) free(written(9 << 20));
}
static void trimmed(void) {
    static void *p[20000];
    for (int i = 0; i < 20000; i++) p[i] = malloc(500);
    for (int i = 0; i < 20000; i++)
        if (i % 20) free(p[i]);
    free(written(9 << 20));
    malloc_trim(0);
    for (int i = 0; i < 20000; i += 20) free(p[i]);
}
static void figures(void) { (void)mallinfo2(); }
static void enormous(void) { free(malloc((size_t)100 << 30)); }
static void usable(void) {
    void *p = malloc(100);
    malloc_usable_size(p);
    free(p);
}

/* No call takes more than MOST bytes of stack, including a thread's first call, its growth, purge and trim. */
static void measure_all(void) {
    static const struct test_case jobs[] = {
        CASE(nothing), CASE(first), CASE(large),   CASE(zeroed),  CASE(aligned),  CASE(resized),
        CASE(many),    CASE(purged), CASE(trimmed), CASE(figures), CASE(enormous), CASE(usable),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED);
        pthread_attr_t attributes;
        pthread_t t;
        CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK) == 0);
        job = jobs[i].run;
        CHECK(pthread_create(&t, &attributes, measure, NULL) == 0 && pthread_join(t, NULL) == 0);
        dprintf(1, "%s %zu\n", jobs[i].name, depth);
        if (depth > most) most = depth;
        munmap(stack, STACK);
    }
    if (strict()) CHECK_AT(most <= MOST, most);
}

static void bytes_for_each_call(void) { measure_all(); }

/* The same without a helper, so that the calls purge themselves. */
static void bytes_without_helper(void) {
    filter(all_but(-1, 0));
    measure_all();
}

static void *fill_large(void *unused) {
    char *p[40];
    for (int r = 0; r < 30; r++) {
        for (int i = 0; i < 40; i++) {
            p[i] = malloc(300000);
            if (p[i]) memset(p[i], 1, 300000);
        }
        for (int i = 0; i < 40; i++) free(p[i]);
    }
    return unused;
}
static void *trim(void *unused) {
    malloc_trim(0);
    return unused;
}

/* Runs `body` in a thread with the smallest permitted stack, beside slabs with holes. */
static void in_smallest_stack(void *(*body)(void *)) {
    static void *p[20000];
    pthread_attr_t attributes;
    pthread_t t;
    for (int i = 0; i < 20000; i++) p[i] = malloc(500);
    for (int i = 0; i < 20000; i++)
        if (i % 20) free(p[i]);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&t, &attributes, body, NULL) == 0 && pthread_join(t, NULL) == 0);
}
static void smallest_trims(void) { in_smallest_stack(trim); }
/* Run with NEAP_LIMIT=20M. */
static void smallest_at_the_limit(void) { in_smallest_stack(fill_large); }

static int rounds;

/* All kinds of calls; near a limit some return NULL. */
static void *all_calls(void *arg) {
    long id = (long)arg;
    char *p[64];
    for (int r = 0; r < rounds; r++) {
        for (long i = 0; i < 64; i++) {
            size_t n = (size_t)(i + id % 2);
            switch (i % 6) {
            case 0: p[i] = malloc(1 + n * 37); break;
            case 1: p[i] = calloc(1, 40000 + n * 1000); break;
            case 2: p[i] = memalign((size_t)4096 << (i % 5), 1000 + n); break;
            case 3: p[i] = realloc(malloc(100), 200000); break;
            case 4: p[i] = calloc(3, 300000); break;
            default:
                p[i] = malloc(3 << 20);
                if (p[i]) p[i][1 << 20] = 1;
            }
            if (p[i]) *p[i] = 1;
        }
        for (int i = 0; i < 64; i++) {
            char *q = i % 3 == 0 ? realloc(p[i], 100000 * (size_t)(1 + i % 4)) : p[i];
            free(q ? q : p[i]);
        }
    }
    return NULL;
}
static void waves_in_smallest_stacks(int waves) {
    pthread_attr_t attributes;
    pthread_t t[16];
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    for (int r = 0; r < waves; r++) {
        for (long i = 0; i < 16; i++) CHECK(pthread_create(&t[i], &attributes, all_calls, (void *)i) == 0);
        for (int i = 0; i < 16; i++) CHECK(pthread_join(t[i], NULL) == 0);
    }
}
/* Run with NEAP_LIMIT=20M. Each refused call first makes handshakes with all threads: few calls, because each may be
   delayed. */
static void smallest_in_waves(void) {
    rounds = 1;
    waves_in_smallest_stacks(1);
}

/* Without a helper, ending threads give back what waits: 400 MB of it must not stay. */
static void waves_under_filter(void) {
    filter(all_but(-1, 0));
    rounds = 5;
    waves_in_smallest_stacks(2);
    nap(1500);
    printf("RSS %ld KiB\n", status_kib("VmRSS:"));
    if (strict()) CHECK_AT(status_kib("VmRSS:") < 60 << 10, status_kib("VmRSS:"));
}

static const struct test_case cases[] = {
    CASE(bytes_for_each_call),   CASE(bytes_without_helper), CASE(smallest_trims),
    CASE(smallest_at_the_limit), CASE(smallest_in_waves),    CASE(waves_under_filter),
};
TEST_MAIN(cases)
