/* aligned_alloc, memalign, posix_memalign, valloc, pvalloc, malloc_usable_size and related functions that free. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>

typedef void *(*align_fn)(size_t, size_t);

static void *by_posix(size_t alignment, size_t size) {
    void *p = NULL;
    int rc = posix_memalign(&p, alignment, size);
    if (rc) errno = rc;
    return rc ? NULL : p;
}
static const align_fn FNS[] = {aligned_alloc, memalign, by_posix};

static void every_alignment(void) {
    for (int f = 0; f < 3; f++) {
        for (size_t alignment = f == 2 ? 8 : 1; alignment <= ((size_t)1 << 30); alignment *= 2) {
            const size_t sizes[] = {0, 1, alignment / 2 + 1, alignment, alignment + 1, alignment * 3, 5000};
            for (int s = 0; s < 7; s++) {
                if (sizes[s] > ((size_t)2 << 30)) continue;
                char *p = FNS[f](alignment, sizes[s]);
                CHECK_AT(p, alignment);
                CHECK_AT((uintptr_t)p % alignment == 0, alignment);
                CHECK_AT(malloc_usable_size(p) >= sizes[s], sizes[s]);
                if (sizes[s]) p[0] = p[sizes[s] - 1] = 1;
                errno = EDOM;
                free(p);
                CHECK_AT(errno == EDOM, alignment);
            }
        }
    }
}

/* Aligned blocks among others: no overlap, whatever the order of the frees. */
static void no_overlap(void) {
    enum { SLOTS = 600 };
    static struct { char *p; size_t size; } slot[SLOTS];
    uint64_t seed = 5;
    for (int step = 0; step < 60000; step++) {
        uint64_t r = next_random(&seed);
        size_t i = r % SLOTS, alignment = (size_t)8 << (r >> 10) % 14, size = (r >> 24) % 9000;
        if (slot[i].p) {
            CHECK_FILL(slot[i].p, slot[i].size, i);
            free(slot[i].p);
        }
        slot[i].p = r >> 60 ? FNS[r >> 40 & 1](alignment, size) : malloc(size);
        CHECK_AT(slot[i].p, size);
        if (r >> 60) CHECK_AT((uintptr_t)slot[i].p % alignment == 0, alignment);
        slot[i].size = size;
        fill(slot[i].p, size, i);
    }
}

static void three_of_1_gib(void) {
    size_t big = (size_t)1 << 30;
    char *p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = memalign(big, 100000);
        CHECK_AT(p[i] && (uintptr_t)p[i] % big == 0, i);
        fill(p[i], 100000, i);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_FILL(p[i], 100000, i);
        free(p[i]);
    }
}

static void posix_memalign_errors(void) {
    const size_t bad[] = {0, 1, 2, 3, 4, 5, 7, 12, 24, 100, 4095, SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *p = &p;
        errno = EDOM;
        CHECK_AT(posix_memalign(&p, bad[i], 64) == EINVAL, bad[i]);
        CHECK_AT(p == &p && errno == EDOM, bad[i]);
    }
    const size_t huge[] = {SIZE_MAX, SIZE_MAX - 64, (size_t)PTRDIFF_MAX + 1};
    for (int i = 0; i < 3; i++) {
        for (size_t alignment = 8; alignment <= ((size_t)1 << 30); alignment *= 2) {
            void *p = &p;
            errno = EDOM;
            CHECK_AT(posix_memalign(&p, alignment, huge[i]) == ENOMEM, alignment);
            CHECK_AT(p == &p && errno == ENOMEM, alignment);
        }
    }
}

/* errno after each call is what glibc leaves there: programs print it. */
static void errno_of_each_call(void) {
    volatile size_t max = SIZE_MAX, half = PTRDIFF_MAX, top = (size_t)1 << 63;
    void *p = NULL, *q = NULL;
#define LEAVES(wanted, call) \
    do {                     \
        errno = EDOM;        \
        call;                \
        CHECK_AT(errno == (wanted), wanted); \
    } while (0)
    LEAVES(EDOM, CHECK((p = malloc(0)) != NULL));
    LEAVES(ENOMEM, CHECK(realloc(p, max) == NULL));
    LEAVES(ENOMEM, CHECK(reallocarray(p, max, 2) == NULL));
    LEAVES(EDOM, CHECK((p = realloc(p, 100000)) != NULL));
#ifdef __GLIBC__
    LEAVES(EDOM, CHECK(realloc(p, 0) == NULL));
#else
    LEAVES(EDOM, CHECK((p = realloc(p, 0)) != NULL));
    LEAVES(EDOM, free(p));
#endif
    LEAVES(ENOMEM, CHECK(malloc(max) == NULL));
    LEAVES(ENOMEM, CHECK(calloc(max, 2) == NULL));
    LEAVES(ENOMEM, CHECK(calloc(half, 1) == NULL));
    LEAVES(EDOM, CHECK((p = calloc(0, max)) != NULL));
    LEAVES(EDOM, free(p));
    LEAVES(ENOMEM, CHECK(realloc(NULL, max) == NULL));
    LEAVES(ENOMEM, CHECK(reallocarray(NULL, max, 2) == NULL));
    LEAVES(EINVAL, CHECK(memalign(max, 16) == NULL));
    LEAVES(ENOMEM, CHECK(memalign(top, 16) == NULL));
    LEAVES(ENOMEM, CHECK(memalign(64, max) == NULL));
    LEAVES(ENOMEM, CHECK(aligned_alloc(64, max) == NULL));
    LEAVES(ENOMEM, CHECK(valloc(max) == NULL));
    LEAVES(ENOMEM, CHECK(pvalloc(max) == NULL));
    LEAVES(ENOMEM, CHECK(pvalloc(half) == NULL));
    LEAVES(ENOMEM, CHECK(posix_memalign(&q, 64, max) == ENOMEM));
    LEAVES(ENOMEM, CHECK(posix_memalign(&q, top, 100) == ENOMEM));
    LEAVES(EDOM, CHECK(posix_memalign(&q, 64, 100) == 0));
    LEAVES(EDOM, CHECK(malloc_usable_size(q) >= 100));
    LEAVES(EDOM, free(q));
    LEAVES(EDOM, CHECK(posix_memalign(&q, 3, 100) == EINVAL));
    LEAVES(EDOM, CHECK(malloc_usable_size(NULL) == 0));
    LEAVES(EDOM, free(NULL));
    LEAVES(EDOM, CHECK((p = aligned_alloc(64, 100)) != NULL));
    LEAVES(EDOM, free(p));
    LEAVES(EDOM, CHECK(malloc_info(1, stdout) == EINVAL));
}

static void too_large(void) {
    volatile size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX};
    for (int i = 0; i < 4; i++) {
        for (size_t alignment = 8; alignment <= ((size_t)1 << 30); alignment *= 8) {
            for (int f = 0; f < 2; f++) {
                errno = 0;
                CHECK_AT(FNS[f](alignment, sizes[i]) == NULL, alignment);
                CHECK_AT(errno == ENOMEM, alignment);
            }
        }
        errno = 0;
        CHECK_AT(valloc(sizes[i]) == NULL && errno == ENOMEM, sizes[i]);
        errno = 0;
        CHECK_AT(pvalloc(sizes[i]) == NULL && errno == ENOMEM, sizes[i]);
    }
    volatile size_t half = (size_t)1 << 62;
    errno = 0;
    CHECK(memalign(half * 2, 1) == NULL && errno == ENOMEM);
    CHECK(memalign(half, half) == NULL);
    CHECK(aligned_alloc(half * 2, 16) == NULL);
    CHECK(memalign(SIZE_MAX, 16) == NULL);
}

/* memalign rounds an alignment up to a power of two, or refuses it; it never gives less. */
static void odd_alignment(void) {
    for (size_t alignment = 3; alignment < 5000; alignment += 7) {
        size_t power = 1;
        while (power < alignment) power *= 2;
        for (int f = 0; f < 2; f++) {
            errno = 0;
            char *p = FNS[f](alignment, 50);
            if (p) CHECK_AT((uintptr_t)p % power == 0, alignment);
            else CHECK_AT(errno == EINVAL, alignment);
            free(p);
        }
    }
}

static void page_aligned(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    for (size_t size = 0; size < 300000; size += 777) {
        char *p = valloc(size), *q = pvalloc(size);
        CHECK_AT(p && q && (uintptr_t)p % page == 0 && (uintptr_t)q % page == 0, size);
        size_t whole = (size + page - 1) / page * page;
        CHECK_AT(malloc_usable_size(p) >= size, size);
        CHECK_AT(malloc_usable_size(q) >= whole, size);
        memset(q, 1, whole);
        memset(p, 2, size);
        free(p);
        free(q);
    }
}

static void realloc_keeps(void) {
    for (size_t alignment = 16; alignment <= (1u << 22); alignment *= 4) {
        for (size_t size = 1; size < (4u << 20); size = size * 7 + 3) {
            char *p = aligned_alloc(alignment, size);
            CHECK_AT(p, size);
            fill(p, size, alignment);
            p = realloc(p, size * 2);
            CHECK_AT(p, size);
            CHECK_FILL(p, size, alignment);
            p = realloc(p, size / 2 + 1);
            CHECK_AT(p, size);
            CHECK_FILL(p, size / 2 + 1, alignment);
            free(p);
        }
    }
}

/* The usable size is constant for a block's life, and every byte of it can be written. */
static void usable(void) {
    enum { N = 4000 };
    static char *p[N];
    static size_t usable[N];
    CHECK(malloc_usable_size(NULL) == 0);
    uint64_t seed = 17;
    for (int i = 0; i < N; i++) {
        uint64_t r = next_random(&seed);
        size_t size = (r >> 8) % (i % 50 ? 3000 : 700000);
        p[i] = i % 3 ? malloc(size) : aligned_alloc((size_t)16 << r % 9, size);
        CHECK_AT(p[i], size);
        usable[i] = malloc_usable_size(p[i]);
        CHECK_AT(usable[i] >= size, size);
        fill(p[i], usable[i], i);
    }
    for (int i = 0; i < N; i += 2) free(p[i]);
    for (int i = 1; i < N; i += 2) {
        CHECK_AT(malloc_usable_size(p[i]) == usable[i], usable[i]);
        CHECK_FILL(p[i], usable[i], i);
        free(p[i]);
    }
}

static void freeing_kin(void) {
    void (*cfree)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");
    void (*free_sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*free_aligned_sized)(void *, size_t, size_t) =
        (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    if (!strict() && (!cfree || !free_sized || !free_aligned_sized)) SKIP("not all of them exist here");
    CHECK(cfree && free_sized && free_aligned_sized);
    cfree(NULL);
    free_sized(NULL, 0);
    free_sized(NULL, 100);
    free_aligned_sized(NULL, 64, 128);
    /* All of them really free: RSS stays where it is. */
    long before = 0;
    for (int round = 0; round < 3000; round++) {
        size_t size = round % 2 ? 100 + round : 300000 + round;
        for (int k = 0; k < 3; k++) {
            char *p = k == 2 ? aligned_alloc(64, size) : malloc(size);
            CHECK_AT(p, size);
            memset(p, 1, size);
            errno = EDOM;
            if (k == 0) cfree(p);
            if (k == 1) free_sized(p, size);
            if (k == 2) free_aligned_sized(p, 64, size);
            CHECK_AT(errno == EDOM, k);
        }
        if (round == 500) before = status_kib("VmRSS:");
    }
    long grown = status_kib("VmRSS:") - before;
    CHECK_AT(grown < 32768, grown);
}

static const struct test_case CASES[] = {
    CASE(every_alignment), CASE(no_overlap),    CASE(three_of_1_gib), CASE(posix_memalign_errors),
    CASE(too_large),       CASE(odd_alignment), CASE(page_aligned),   CASE(realloc_keeps),
    CASE(usable),          CASE(freeing_kin),   CASE(errno_of_each_call),
};
TEST_MAIN(CASES)
