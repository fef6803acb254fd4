/* realloc of a block that lies in several mappings, in a process that is near its limit on mappings: every byte
   survives, or NULL is returned and the block is unchanged. From Linux 6.17 on one mremap moves several mappings, and
   may stop in the middle. */
#include "trust.h"

enum { PAGE = 4096, SIZE = 4 << 20, FAR = 40, MOST_KEPT = 16 };

/* Mappings to use up: every other OS page of one is made readable, which makes two more; half of another, one more. */
static char *spare, *half;
static size_t spare_at = PAGE, spare_end;

static void set_up(void) {
    long most = 65530;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
    if (f) {
        CHECK(fscanf(f, "%ld", &most) == 1);
        fclose(f);
    }
    if (most > 200000) SKIP("vm.max_map_count is %ld, too many to use up", most);
    spare_end = (size_t)most * PAGE + (1 << 20);
    spare = mmap(NULL, spare_end, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    half = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(spare != MAP_FAILED && half != MAP_FAILED);
}

/* Leaves about `left` mappings to the limit: takes all that can be had, and gives some back. */
static void leave_mappings(long left) {
    CHECK(mprotect(half, 2 * PAGE, PROT_NONE) == 0);
    for (; mprotect(spare + spare_at, PAGE, PROT_READ) == 0; spare_at += 2 * PAGE) CHECK(spare_at + 3 * PAGE < spare_end);
    for (long given = 0; given <= left && spare_at > 2 * PAGE; given += 2) {
        spare_at -= 2 * PAGE;
        CHECK(mprotect(spare + spare_at, PAGE, PROT_NONE) == 0);
    }
    if (left % 2 == 0) mprotect(half, PAGE, PROT_READ);
}

/* A block of SIZE bytes that realloc has moved and grown several times, as a vector grows. */
static uint64_t *grown(void **keep, int *kept) {
    size_t n = SIZE / 4;
    char *p = malloc(n);
    keep[(*kept)++] = malloc(70000);
    for (int k = 0; k < 5 && p; k++) {
        p = realloc(p, n + n / 8);
        CHECK(p);
        memset(p, 1, n + n / 8);
        void *wall = malloc(SIZE * 2);
        n += n / 8 + n / 16;
        p = realloc(p, n + PAGE * (size_t)(k + 1));
        free(wall);
        keep[(*kept)++] = malloc(70000);
    }
    return realloc(p, SIZE);
}

/* Locks or marks every other part of the block, which makes a mapping of each. */
static void cut(void *block, int parts, int lock) {
    for (int k = 0; k < parts; k++) {
        char *at = (char *)block + (size_t)(2 * k + 1) * (SIZE / (2 * (size_t)parts) / PAGE * PAGE);
        if (lock)
            mlock(at, PAGE);
        else
            /* Refused (EAGAIN) where the mappings of blocks freed before still exist: a purge merges them. */
            madvise(at, PAGE, MADV_DONTDUMP);
    }
}

enum kind { LOCKED, MARKED, GROWN };

static void grow_near_the_limit(int parts, enum kind kind) {
    set_up();
    for (long left = FAR; left >= 0; left--) {
        void *keep[MOST_KEPT];
        int kept = 0;
        uint64_t *p = kind == GROWN ? grown(keep, &kept) : malloc(SIZE);
        void *wall = malloc(SIZE); /* keeps it from growing in place */
        if (p) {
            for (size_t i = 0; i < SIZE / 8; i++) p[i] = 0x1234567800000000u + i;
            if (kind != GROWN) cut(p, parts, kind == LOCKED);
            leave_mappings(left);
            uint64_t *q = realloc(p, 3 * (size_t)SIZE);
            int moved = q != NULL;
            if (!q) q = p;
            for (size_t i = 0; i < SIZE / 8; i++) CHECK_AT(q[i] == 0x1234567800000000u + i, i);
            if (moved) memset(q, 1, 3 * (size_t)SIZE);
            munlock(q, SIZE);
            free(q);
        }
        free(wall);
        while (kept) free(keep[--kept]);
    }
}

static void parts_locked(void) { grow_near_the_limit(16, LOCKED); }
static void parts_marked(void) { grow_near_the_limit(16, MARKED); }
static void one_part_locked(void) { grow_near_the_limit(1, LOCKED); }
static void grown_before(void) { grow_near_the_limit(0, GROWN); }

static const struct test_case cases[] = {CASE(parts_locked), CASE(parts_marked), CASE(one_part_locked),
                                         CASE(grown_before)};
TEST_MAIN(cases)
