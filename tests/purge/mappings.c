/* How many mappings a heap of many large blocks costs. */
#include "purge.h"

enum { BLOCKS = 200000, LOW = 33 << 10, HIGH = 256 << 10, MOST = 1000 };

static long mappings(void) {
    static char text[1 << 16];
    int fd = open("/proc/self/maps", O_RDONLY);
    long lines = 0;
    CHECK(fd >= 0);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) lines += text[i] == '\n';
    close(fd);
    return lines;
}

/* BLOCKS of random sizes, their first byte written; as many are replaced, at random. */
static void large_blocks(void) {
    static char *block[BLOCKS];
    uint64_t seed = 1;
    long most = 0;
    for (int i = 0; i < 2 * BLOCKS; i++) {
        int at = i < BLOCKS ? i : (int)(next_random(&seed) % BLOCKS);
        free(block[at]);
        block[at] = malloc(LOW + next_random(&seed) % (HIGH - LOW + 1));
        CHECK_AT(block[at], i);
        *block[at] = 1;
        if (i % 20000 == 0) {
            long now = mappings();
            most = now > most ? now : most;
            CHECK_AT(now < MOST, now);
        }
    }
    for (int i = 0; i < BLOCKS; i++)
        if (i % 3) free(block[i]), block[i] = NULL;
    nap(1500);
    long now = mappings();
    CHECK_AT(now < MOST, now);
    printf("%ld mappings at most, %ld at the end\n", most, now);
    for (int i = 0; i < BLOCKS; i++) free(block[i]);
    wait_for_rss(64 << 10);
}

/* Blocks that realloc moved, and that shrink before they are freed; blocks that stay take what they leave. */
static void moved_blocks_shrink(void) {
    enum { ROUNDS = 3000 };
    static char *kept[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        char *p = malloc(600 << 10);
        CHECK_AT(p, i);
        /* Longer than any OS page. */
        for (int at = 0; at < 600 << 10; at += 64 << 10) p[at] = (char)i;
        char *behind = malloc(64 << 10);
        p = realloc(p, 1100 << 10);
        CHECK_AT(behind && p, i);
        p = realloc(p, 200 << 10);
        CHECK_AT(p && p[128 << 10] == (char)i, i);
        kept[i] = malloc(300 << 10);
        CHECK_AT(kept[i], i);
        kept[i][0] = 1;
        free(p);
        free(behind);
        if (i % 100 == 0) CHECK_AT(mappings() < MOST, i);
    }
    for (int i = 0; i < ROUNDS; i++) free(kept[i]);
}

static const struct test_case CASES[] = {CASE(large_blocks), CASE(moved_blocks_shrink)};
TEST_MAIN(CASES)
