/* Memory of slabs that is purged while threads work. */
#include "trust.h"

enum { BIG = 400, SMALL = 800, SMALL_SIZE = 28000, BIG_SIZE = 65536 };

/* An OS page behind the last block of a slab belongs to no block: a late purge of such a page must not clear a block of
   the chunk's next owner. Blocks of 28,000 bytes leave such a page; blocks of a whole chunk follow. */
static void late_purge(void) {
    static char *big[BIG], *small[SMALL];
    long rounds = trial_ms(8000) / 1000;
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BIG; i++) big[i] = filled(60000);
        for (int i = 0; i < BIG; i++) free(big[i]);
        for (int i = 0; i < SMALL; i++) small[i] = filled(SMALL_SIZE);
        for (int i = 0; i < SMALL; i += 2) free(small[i]);
        for (int i = 0; i < SMALL; i += 2) small[i] = filled(SMALL_SIZE);
        /* The purger examines holes that are half a second old: the blocks are freed while it does. */
        nap(400 + r * 17 % 150);
        for (int i = 0; i < SMALL; i++) free(small[i]);
        for (int i = 0; i < BIG; i++) {
            big[i] = malloc(BIG_SIZE);
            CHECK_AT(big[i], i);
            memset(big[i], 0xAA, BIG_SIZE);
        }
        nap(600);
        for (int i = 0; i < BIG; i++) {
            for (int k = 0; k < BIG_SIZE; k++) CHECK_AT((unsigned char)big[i][k] == 0xAA, k);
            free(big[i]);
        }
    }
}

enum { THREADS = 4, SIZE = 3072, PER_SLAB = 21, BLOCKS = 40 * PER_SLAB };

static char *kept[THREADS][BLOCKS];
static int kept_count[THREADS];
static atomic_int stop;

static void *trim_all_the_time(void *unused) {
    while (!atomic_load(&stop)) malloc_trim(0);
    return unused;
}

/* Makes holes in forty slabs, keeps the first two blocks of each, and ends. */
static void *leave_holes(void *arg) {
    long id = (long)arg;
    uint64_t seed = (uint64_t)now_ms() * 4 + (uint64_t)id + 1;
    char *p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        p[i] = malloc(SIZE);
        CHECK(p[i]);
        memset(p[i], i | 1, SIZE);
    }
    for (int k = 0; k < 6; k++) {
        for (int i = 0; i < BLOCKS; i++)
            if (p[i] && i % PER_SLAB != 0 && next_random(&seed) % 7 < 2) {
                free(p[i]);
                p[i] = NULL;
            }
        usleep(200 + (unsigned)(next_random(&seed) % 3000));
    }
    kept_count[id] = 0;
    for (int i = 0; i < BLOCKS; i++) {
        if (p[i] && i % PER_SLAB < 2)
            kept[id][kept_count[id]++] = p[i];
        else
            free(p[i]);
    }
    return NULL;
}

/* A trim visits the heap of a thread twice; the thread may end in between, and the second visit must not exceed the
   first one's count. */
static void threads_end_under_trim(void) {
    pthread_t trimmer = started(trim_all_the_time, NULL), t[THREADS];
    for (long end = now_ms() + trial_ms(6000); now_ms() < end;) {
        for (long i = 0; i < THREADS; i++) t[i] = started(leave_holes, (void *)i);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(t[i], NULL) == 0);
        for (int i = 0; i < THREADS; i++)
            for (int k = 0; k < kept_count[i]; k++) {
                unsigned char *q = (unsigned char *)kept[i][k];
                CHECK(q[0] != 0);
                for (int j = 1; j < SIZE; j++) CHECK_AT(q[j] == q[0], j);
                free(q);
            }
    }
    atomic_store(&stop, 1);
    pthread_join(trimmer, NULL);
}

static const struct test_case cases[] = {CASE(late_purge), CASE(threads_end_under_trim)};
TEST_MAIN(cases)
