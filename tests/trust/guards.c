/* OS pages that are inaccessible stay so while other threads make memory usable: with harden=on the guard behind each block
   of whole OS pages, and what the program itself protects in its blocks. */
#include "trust.h"

enum { THREADS = 4, BLOCKS = 3000 };
static char *block[THREADS][BLOCKS];

static void *allocate(void *arg) {
    long id = (long)arg;
    for (int i = 0; i < BLOCKS; i++) {
        block[id][i] = malloc(60000 + (size_t)(i % 7) * 60000);
        if (!block[id][i]) return NULL;
        block[id][i][0] = 1;
    }
    return NULL;
}

/* Whether the kernel can read the byte. */
static int readable(const char *at) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    int could = write(ends[1], at, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return could;
}

/* A process of its own for each trial, as only growth is of interest. */
static void trial(void) {
    pthread_t t[THREADS];
    long all = 0, open = 0;
    for (long i = 0; i < THREADS; i++) t[i] = started(allocate, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int k = 0; k < THREADS; k++)
        for (int i = 0; i < BLOCKS; i++) {
            if (!block[k][i]) continue;
            all++;
            open += readable(block[k][i] + ((malloc_usable_size(block[k][i]) + 4095) & ~(size_t)4095));
        }
    if (open) dprintf(2, "%ld of %ld blocks have no guard\n", open, all);
    if (strict()) CHECK_AT(open == 0, open);
}

enum { PAGE = 4096 };

static void *protect(void *arg) {
    long id = (long)arg;
    for (int i = 0; i < BLOCKS; i++) {
        char *p = memalign(65536, 60000 + (size_t)(i % 7) * 60000);
        if (!p) return NULL;
        p[0] = 1;
        CHECK(mprotect(p + 8 * PAGE, PAGE, PROT_NONE) == 0);
        block[id][i] = p;
    }
    return NULL;
}

static void protected_trial(void) {
    pthread_t t[THREADS];
    long all = 0, open = 0;
    for (long i = 0; i < THREADS; i++) t[i] = started(protect, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int k = 0; k < THREADS; k++)
        for (int i = 0; i < BLOCKS; i++) {
            if (!block[k][i]) continue;
            all++;
            open += readable(block[k][i] + 8 * PAGE);
        }
    CHECK_AT(all > 0 && open == 0, open);
}

/* A program may take access to an OS page of its block away, or make code of it. */
static void programs_pages_stay(void) { in_children(protected_trial, trial_ms(4000), 0); }

static void guards_stay(void) { in_children(trial, trial_ms(4000), 0); }

static const struct test_case cases[] = {CASE(guards_stay), CASE(programs_pages_stay)};
TEST_MAIN(cases)
