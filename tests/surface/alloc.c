/* malloc, calloc and free. */
#include "check.h"
#include <dlfcn.h>

/* Sizes around every power of two and in between, up to 300 MiB. */
static size_t sizes(size_t *out, size_t most) {
    size_t n = 0;
    for (size_t s = 0; s <= 4200; s++) out[n++] = s;
    for (size_t base = 8192; base <= (256u << 20); base *= 2) {
        for (long d = -17; d <= 17; d++) out[n++] = base + d;
        for (size_t k = 1; k < 8; k++) out[n++] = base + base / 8 * k + k;
    }
    CHECK(n <= most);
    return n;
}
static size_t all[8192];

static void preload_in_effect(void) {
    const char *want = getenv("NEAP_TEST_PRELOADED");
    if (!want) SKIP("nothing is preloaded");
    const char *names[] = {"malloc", "free", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign",
                           "malloc_usable_size"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Dl_info info;
        CHECK_AT(dladdr(dlsym(RTLD_DEFAULT, names[i]), &info), i);
        if (strcmp(info.dli_fname, want) != 0) {
            dprintf(2, "%s comes from %s\n", names[i], info.dli_fname);
            CHECK_AT(!"the library under test defines it", i);
        }
    }
}

static void zero_size_unique(void) {
    void *p[1000];
    for (int i = 0; i < 1000; i++) {
        p[i] = i % 2 ? malloc(0) : calloc(i % 4, 0);
        CHECK_AT(p[i] != NULL, i);
        for (int j = 0; j < i; j++) CHECK_AT(p[j] != p[i], i);
    }
    for (int i = 0; i < 1000; i++) free(p[i]);
}

static void alignment(void) {
    size_t n = sizes(all, 8192);
    for (size_t i = 0; i < n; i++) {
        void *p[3] = {malloc(all[i]), calloc(1, all[i]), realloc(NULL, all[i])};
        for (int k = 0; k < 3; k++) {
            CHECK_AT(p[k] != NULL, all[i]);
            CHECK_AT((uintptr_t)p[k] % (all[i] >= 16 ? 16 : 8) == 0, all[i]);
        }
        for (int k = 0; k < 3; k++) free(p[k]);
    }
}

static void too_large(void) {
    volatile size_t sizes[] = {(size_t)PTRDIFF_MAX + 1, SIZE_MAX,       SIZE_MAX - 1,         SIZE_MAX - 15,
                               SIZE_MAX - 4095,         SIZE_MAX - 65535, SIZE_MAX / 2 + 4096, (size_t)PTRDIFF_MAX,
                               (size_t)PTRDIFF_MAX - 1, (size_t)PTRDIFF_MAX - 65536, (size_t)1 << 62, (size_t)1 << 48};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        errno = 0;
        CHECK_AT(malloc(sizes[i]) == NULL, sizes[i]);
        CHECK_AT(errno == ENOMEM, sizes[i]);
        errno = 0;
        CHECK_AT(calloc(1, sizes[i]) == NULL, sizes[i]);
        CHECK_AT(errno == ENOMEM, sizes[i]);
        errno = 0;
        CHECK_AT(realloc(NULL, sizes[i]) == NULL, sizes[i]);
        CHECK_AT(errno == ENOMEM, sizes[i]);
    }
    void *p = malloc(100); /* the process goes on */
    CHECK(p != NULL);
    free(p);
}

static void calloc_overflow(void) {
    volatile size_t pairs[][2] = {{SIZE_MAX, 2},          {2, SIZE_MAX},           {SIZE_MAX / 2 + 1, 2},
                                  {(size_t)1 << 32, (size_t)1 << 32}, {SIZE_MAX, SIZE_MAX}, {SIZE_MAX / 16 + 2, 16},
                                  {((size_t)1 << 63) + 8, 2}, {3, SIZE_MAX / 3 + 5}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        errno = 0;
        CHECK_AT(calloc(pairs[i][0], pairs[i][1]) == NULL, i);
        CHECK_AT(errno == ENOMEM, i);
    }
}

static void free_keeps_errno(void) {
    size_t n = sizes(all, 8192);
    for (size_t i = 0; i < n; i++) {
        char *p = malloc(all[i]);
        CHECK_AT(p, all[i]);
        if (all[i]) p[0] = p[all[i] - 1] = 1;
        errno = EDOM;
        free(p);
        CHECK_AT(errno == EDOM, all[i]);
    }
    errno = ERANGE;
    free(NULL);
    CHECK(errno == ERANGE);
}

static void check_zero(const char *p, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (p[i]) dprintf(2, "byte %zu of %zu is %d\n", i, size, p[i]);
        CHECK_AT(p[i] == 0, size);
    }
}

/* Every size: dirtied and freed, then taken again with calloc. */
static void calloc_zero(void) {
    size_t n = sizes(all, 8192);
    for (size_t i = 0; i < n && all[i] < (20u << 20); i++) {
        void *p[4];
        for (int k = 0; k < 4; k++) {
            p[k] = malloc(all[i]);
            CHECK_AT(p[k], all[i]);
            memset(p[k], 0xA5, all[i]);
        }
        for (int k = 0; k < 4; k++) free(p[(k * 3) % 4]);
        for (int k = 0; k < 4; k++) {
            p[k] = calloc(k % 2 ? all[i] : 1, k % 2 ? 1 : all[i]);
            CHECK_AT(p[k], all[i]);
            check_zero(p[k], all[i]);
            memset(p[k], 0x5A, all[i]);
        }
        for (int k = 0; k < 4; k++) free(p[k]);
    }
}

/* Large blocks of changing size, dirtied whole, in stripes, or not at all. */
static void calloc_zero_large(void) {
    uint64_t seed = 7;
    for (int round = 0; round < 60; round++) {
        size_t size = 65536 + next_random(&seed) % (48u << 20);
        char *p = calloc(1, size);
        CHECK_AT(p, size);
        check_zero(p, size);
        for (size_t at = round % 3 * 5000; at < size && round % 3 != 2; at += round % 3 ? 70000 : 1) p[at] = 1;
        if (round % 5 == 4) p = realloc(p, size / 2);
        CHECK_AT(p, size);
        free(p);
    }
}

/* Blocks of random size, live at the same time, must not overlap. */
static void no_overlap(void) {
    enum { SLOTS = 20000 };
    static struct { unsigned char *p; size_t size; } slot[SLOTS];
    uint64_t seed = 99;
    for (int step = 0; step < 600000; step++) {
        uint64_t r = next_random(&seed);
        size_t i = r % SLOTS;
        if (slot[i].p) {
            CHECK_FILL(slot[i].p, slot[i].size, i);
            free(slot[i].p);
        }
        size_t size = (r >> 20) % 400;
        if (r >> 40 & 1) size = (r >> 20) % 48;
        if ((r >> 41) % 512 == 0) size = (r >> 20) % 60000;
        slot[i].size = size;
        slot[i].p = malloc(size);
        CHECK_AT(slot[i].p, size);
        fill(slot[i].p, size, i);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        if (slot[i].p) CHECK_FILL(slot[i].p, slot[i].size, i);
        free(slot[i].p);
    }
}

static void many_blocks(void) {
    enum { N = 5000000 };
    static uint32_t *p[N];
    for (uint32_t i = 0; i < N; i++) {
        p[i] = malloc(16);
        CHECK_AT(p[i], i);
        *p[i] = i;
    }
    for (uint32_t i = 0; i < N; i++) CHECK_AT(*p[i] == i, i);
    for (uint32_t i = 0; i < N; i += 2) free(p[i]);
    for (uint32_t i = 1; i < N; i += 2) free(p[i]);
}

/* More live large blocks than a process may have mappings (vm.max_map_count is 65530 by default). */
static void many_large_blocks(void) {
    enum { N = 70000 };
    static uint32_t *p[N];
    for (uint32_t i = 0; i < N; i++) {
        p[i] = malloc(128 << 10);
        CHECK_AT(p[i], i);
        if (i % 16 == 0) *p[i] = i;
    }
    for (uint32_t i = 0; i < N; i += 16) CHECK_AT(*p[i] == i, i);
    for (uint32_t i = 0; i < N; i++) free(p[(i * 7919ull) % N]);
    void *again = malloc(512 << 20);
    CHECK(again);
    free(again);
}

/* Programs copy whole blocks, including bytes that they never wrote: what free left in a block must not count as the
 * tag of a free block in the copy. */
static void copies_of_stale_bytes(void) {
    for (size_t size = 8; size <= 32768; size += size < 512 ? 8 : size / 3) {
        enum { N = 64 };
        char *p[N], *kept = malloc(size), *clean = calloc(1, size);
        CHECK_AT(kept && clean, size);
        for (int round = 0; round < 6; round++) {
            for (int i = 0; i < N; i++) CHECK_AT((p[i] = malloc(size)) != NULL, size);
            if (round % 2) memcpy(kept, p[round * 7 % N], size);
            for (int i = 0; i < N && round; i++) memcpy(p[i], round % 3 ? kept : p[(i * 31 + 7) % N], size);
            for (int i = 0; i < N; i++) free(p[i * 13 % N]);
        }
        for (int i = 0; i < N; i++) CHECK_AT((p[i] = malloc(size)) != NULL, size);
        for (int i = 0; i < N; i++) memmove(p[i], p[i], size), free(p[i]);
        free(kept);
        free(clean);
    }
}

static const struct test_case CASES[] = {
    CASE(preload_in_effect), CASE(zero_size_unique),  CASE(alignment),  CASE(too_large),
    CASE(calloc_overflow),   CASE(free_keeps_errno),  CASE(calloc_zero), CASE(calloc_zero_large),
    CASE(no_overlap),        CASE(many_blocks),       CASE(many_large_blocks),
    CASE(copies_of_stale_bytes),
};
TEST_MAIN(CASES)
