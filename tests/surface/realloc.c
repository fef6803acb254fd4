/* realloc and reallocarray. */
#include "check.h"
#include <malloc.h>

static void null_is_malloc(void) {
    for (size_t size = 0; size < 100000; size = size * 5 / 4 + 1) {
        char *p = realloc(NULL, size);
        CHECK_AT(p, size);
        fill(p, size, 3);
        CHECK_FILL(p, size, 3);
        free(p);
    }
}

/* As in the C library: with glibc the block is freed and NULL returned, with musl it shrinks. */
static void to_zero_frees(void) {
    long before = 0;
    for (int i = 0; i < 200000; i++) {
        char *p = malloc(1 << 12);
        CHECK_AT(p, i);
        p[0] = p[4095] = 1;
        p = realloc(p, 0);
#ifdef __GLIBC__
        CHECK_AT(p == NULL, i);
#else
        CHECK_AT(p != NULL, i);
        free(p);
#endif
        if (i == 1000) before = status_kib("VmRSS:");
    }
    long grown = status_kib("VmRSS:") - before; /* 800 MiB if the blocks were kept */
    CHECK_AT(grown < 65536, grown);
}

/* Contents are kept through every size class, in steps of all widths. */
static void grow(void) {
    for (int step = 1; step < 5; step++) {
        size_t size = 1;
        char *p = malloc(size);
        fill(p, size, 11);
        while (size < (40u << 20)) {
            size_t more = size + size / (4 * step) + step;
            p = realloc(p, more);
            CHECK_AT(p, more);
            CHECK_AT((uintptr_t)p % (more >= 16 ? 16 : 8) == 0, more);
            CHECK_FILL(p, size, 11);
            fill(p + size, more - size, 11 + size * 131);
            size = more;
        }
        CHECK_FILL(p, size, 11);
        free(p);
    }
}

static void grow_by_one(void) {
    char *p = NULL;
    for (size_t size = 1; size < 30000; size++) {
        p = realloc(p, size);
        CHECK_AT(p, size);
        p[size - 1] = (char)(size * 7);
        CHECK_AT(p[size / 2] == (char)((size / 2 + 1) * 7), size);
        CHECK_AT(p[0] == 7, size);
    }
    for (size_t i = 0; i < 29999; i++) CHECK_AT(p[i] == (char)((i + 1) * 7), i);
    free(p);
}

static void shrink(void) {
    for (size_t start = 40u << 20; start > 1; start = start * 2 / 3) {
        char *p = malloc(start);
        CHECK_AT(p, start);
        fill(p, start, 5);
        for (size_t size = start; size > 1; size = size * 5 / 9) {
            p = realloc(p, size);
            CHECK_AT(p, size);
            CHECK_FILL(p, size, 5);
        }
        free(p);
    }
}

/* Huge blocks, grown and shrunk between neighbours, keep their marks. */
static void huge(void) {
    enum { MARK = 1 << 16 };
    size_t size = 2u << 20;
    uint32_t *p = malloc(size), *neighbour[16];
    for (size_t i = 0; i < size / 4; i += MARK / 4) p[i] = (uint32_t)i;
    for (int round = 0; round < 9; round++) {
        neighbour[round] = malloc(3u << 20);
        CHECK_AT(neighbour[round], round);
        neighbour[round][5] = round;
        p = realloc(p, size * 2);
        CHECK_AT(p, size * 2);
        for (size_t i = 0; i < size / 4; i += MARK / 4) CHECK_AT(p[i] == (uint32_t)i, i);
        size *= 2;
        for (size_t i = 0; i < size / 4; i += MARK / 4) p[i] = (uint32_t)i;
    }
    for (; size > (1u << 20); size = size / 3 * 2) {
        p = realloc(p, size);
        CHECK_AT(p, size);
        for (size_t i = 0; i < size / 4; i += MARK / 4) CHECK_AT(p[i] == (uint32_t)i, i);
    }
    for (int round = 0; round < 9; round++) {
        CHECK_AT(neighbour[round][5] == (uint32_t)round, round);
        free(neighbour[round]);
    }
    free(p);
}

/* A request that cannot be served leaves the block unchanged. */
static void failure_keeps_block(void) {
    volatile size_t wanted[] = {SIZE_MAX, (size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX, (size_t)1 << 50};
    for (size_t size = 1; size < (64u << 20); size = size * 3 + 1) {
        char *p = malloc(size);
        CHECK_AT(p, size);
        fill(p, size, 21);
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
            errno = 0;
            CHECK_AT(realloc(p, wanted[i]) == NULL, wanted[i]);
            CHECK_AT(errno == ENOMEM, wanted[i]);
            CHECK_FILL(p, size, 21);
        }
        free(p);
    }
}

/* Growing up to malloc_usable_size never moves the block. */
static void usable_in_place(void) {
    if (!strict()) SKIP("a promise of neap");
    for (size_t size = 1; size < (64u << 20); size = size * 9 / 8 + 1) {
        char *p = malloc(size);
        CHECK_AT(p, size);
        size_t usable = malloc_usable_size(p);
        CHECK_AT(realloc(p, usable) == p, size);
        CHECK_AT(malloc_usable_size(p) == usable, size);
        free(p);
    }
}

static void array_overflow(void) {
    char *p = malloc(100);
    fill(p, 100, 1);
    volatile size_t pairs[][2] = {{SIZE_MAX, 2}, {2, SIZE_MAX}, {(size_t)1 << 32, (size_t)1 << 32},
                                  {SIZE_MAX / 8 + 1, 8}, {SIZE_MAX, SIZE_MAX}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        errno = 0;
        CHECK_AT(reallocarray(p, pairs[i][0], pairs[i][1]) == NULL, i);
        CHECK_AT(errno == ENOMEM, i);
        errno = 0;
        CHECK_AT(reallocarray(NULL, pairs[i][0], pairs[i][1]) == NULL, i);
        CHECK_AT(errno == ENOMEM, i);
        CHECK_FILL(p, 100, 1);
    }
    p = reallocarray(p, 1000, 50);
    CHECK(p);
    CHECK_FILL(p, 100, 1);
    CHECK(malloc_usable_size(p) >= 50000);
    free(p);
}

/* Random growth and shrinkage of many blocks at once. */
static void random_sizes(void) {
    enum { SLOTS = 500 };
    static struct { char *p; size_t size; } slot[SLOTS];
    uint64_t seed = 4711;
    for (int step = 0; step < 60000; step++) {
        uint64_t r = next_random(&seed);
        size_t i = r % SLOTS, size = 1 + (r >> 16) % ((size_t)16 << (r >> 52) % 14);
        if ((r >> 48) % 256 == 0) size *= 64;
        char *p = realloc(slot[i].p, size);
        CHECK_AT(p, size);
        CHECK_FILL(p, size < slot[i].size ? size : slot[i].size, i);
        fill(p, size, i);
        slot[i].p = p;
        slot[i].size = size;
    }
    for (int i = 0; i < SLOTS; i++) {
        CHECK_FILL(slot[i].p, slot[i].size, i);
        free(slot[i].p);
    }
}

static const struct test_case CASES[] = {
    CASE(null_is_malloc), CASE(to_zero_frees), CASE(grow),           CASE(grow_by_one),
    CASE(shrink),         CASE(huge),          CASE(failure_keeps_block), CASE(usable_in_place),
    CASE(array_overflow), CASE(random_sizes),
};
TEST_MAIN(CASES)
