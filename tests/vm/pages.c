/* Which part of a program's memory is resident, on kernels with OS pages of any size. */
#include "check.h"
#include <malloc.h>
#include <stdint.h>

static size_t page;

static long resident(void) { return status_kib("RssAnon:"); }

/* Waits until at most `most` KiB are resident, for half a minute. */
static long goes_down_to(long most) {
    long now = resident();
    for (int i = 0; i < 300 && (now = resident()) > most; i++) usleep(100000);
    return now;
}

/* Resident memory once it has not changed for 3 s. */
static long settled(void) {
    long now = resident();
    for (int same = 0; same < 30; same++) {
        usleep(100000);
        long next = resident();
        if (next != now) same = 0;
        now = next;
    }
    return now;
}

/* Freed memory goes back by itself: small blocks, large ones, a huge one. */
static void purge(void) {
    enum { COUNT = 20000 };
    static char *blocks[COUNT];
    long before = resident();
    for (int i = 0; i < COUNT; i++) {
        size_t size = i % 100 ? i % 3000 + 1 : 300000;
        blocks[i] = malloc(size);
        CHECK(blocks[i]);
        memset(blocks[i], 1, size);
    }
    char *huge = malloc(64 << 20);
    memset(huge, 1, 64 << 20);
    long most = resident();
    CHECK_AT(most - before > 140000, most - before);
    free(huge);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    long after = goes_down_to(before + 2048);
    printf("purge: %ld KiB before, %ld KiB in use, %ld KiB after\n", before, most, after);
    CHECK_AT(after <= before + 2048, after);
}

/* A large block of which few OS pages were touched takes no more memory after calloc, and is zero. */
static void calloc_by_residency(void) {
    size_t size = 24 << 20;
    for (int round = 0; round < 4; round++) {
        char *p = malloc(size);
        for (size_t at = 0; at < size; at += 16 * page) memset(p + at, 0xee, 100);
        free(p);
        long before = resident();
        char *q = calloc(1, size);
        long grown = resident() - before;
        for (size_t at = 0; at < size; at += 16 * page) CHECK_AT(q[at] == 0 && q[at + 99] == 0, at);
        printf("calloc: %s block, %ld KiB more\n", p == q ? "the same" : "another", grown);
        CHECK_AT(grown < (long)(size >> 10) / 4, grown);
        free(q);
    }
}

/* OS pages within slabs on which no block is left go back; the blocks between them keep their contents. */
static void holes(void) {
    enum { COUNT = 200000, SIZE = 256 };
    static char *blocks[COUNT];
    long before = resident();
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = malloc(SIZE);
        memset(blocks[i], i, SIZE);
    }
    long most = resident();
    size_t kept = 0;
    for (int i = 0; i < COUNT; i++) {
        /* The blocks on one OS page in 4 stay. */
        if ((uintptr_t)blocks[i] / page % 4 == 0) kept++;
        else free(blocks[i]), blocks[i] = NULL;
    }
    long wanted = before + (most - before) * 3 / 10 + 2048;
    long after = goes_down_to(wanted);
    printf("holes: %ld KiB for %d blocks, %ld KiB for %zu\n", most - before, COUNT, after - before, kept);
    CHECK_AT(after <= wanted, after);
    for (int i = 0; i < COUNT; i++)
        for (int at = 0; blocks[i] && at < SIZE; at++) CHECK_AT(blocks[i][at] == (char)i, i);
}

static int compare(const void *a, const void *b) {
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

/* One in 20 of many small blocks of all sizes stays. The memory that stays is that of the OS pages they lie on. */
static void survivors(void) {
    enum { COUNT = 300000, EACH = 20 };
    static char *blocks[COUNT];
    static uintptr_t pages[COUNT / EACH * 3];
    memset(blocks, 1, sizeof blocks);
    memset(pages, 1, sizeof pages);
    long before = resident();
    unsigned seed = 1;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525 + 1013904223;
        size_t size = (seed >> 16) % 1000 + 1;
        blocks[i] = malloc(size);
        memset(blocks[i], 1, size);
    }
    long most = resident();
    size_t count = 0;
    for (int i = 0; i < COUNT; i++) {
        if (i % EACH) {
            free(blocks[i]);
            continue;
        }
        uintptr_t at = (uintptr_t)blocks[i], end = at + malloc_usable_size(blocks[i]);
        for (uintptr_t number = at / page; number <= (end - 1) / page; number++) pages[count++] = number;
    }
    qsort(pages, count, sizeof *pages, compare);
    size_t needed = count > 0;
    for (size_t i = 1; i < count; i++) needed += pages[i] != pages[i - 1];
    /* neap's tables count too. */
    long kib = (long)(needed * page >> 10), after = settled() - before;
    printf("survivors: %ld KiB in use, %ld KiB after, %ld KiB needed: %.3f\n", most - before, after, kib,
           (double)after / kib);
    CHECK_AT(after * 100 <= kib * 110, after);
}

/* Memory that grows for long may come in huge pages; prints how much did. */
static void huge(void) {
    enum { COUNT = 150000 };
    static char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = malloc(1000);
        memset(blocks[i], i, 1000);
    }
    usleep(1500000);
    printf("huge: %ld KiB of %ld KiB in huge pages\n", proc_kib("/proc/self/smaps_rollup", "AnonHugePages:"), resident());
    for (int i = 0; i < COUNT; i++) CHECK_AT(blocks[i][999] == (char)i, i);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    long after = goes_down_to(8192);
    CHECK_AT(after <= 8192, after);
}

__attribute__((constructor)) static void start(void) { page = (size_t)sysconf(_SC_PAGESIZE); }

static const struct test_case CASES[] = {CASE(purge), CASE(calloc_by_residency), CASE(holes), CASE(survivors), CASE(huge)};
TEST_MAIN(CASES)
