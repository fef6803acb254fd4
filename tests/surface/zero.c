/* calloc of memory that was used, resized and given back before. */
#include "check.h"
#include <malloc.h>

enum { MIB = 1 << 20, SLOTS = 64, THREADS = 4 };

/* By memcmp, because an emulator takes long for loops. */
static void check_zero(const char *p, size_t size) {
    CHECK_AT(p != NULL, size);
    CHECK_AT(p[0] == 0 && memcmp(p, p + 1, size - 1) == 0, size);
}
static int is_full(const char *p, size_t size, char of) { return p[0] == of && memcmp(p, p + 1, size - 1) == 0; }

/* Gives memory back that nothing happened to: what an allocator learns from that need not hold for all memory. */
static void give_back_first(void) {
    char *p = malloc(4 * MIB);
    CHECK(p != NULL);
    memset(p, 0xa5, 4 * MIB);
    free(p);
    malloc_trim(0);
}

/* Blocks that another one hinders from growing move. What they leave behind goes back, and is handed out again. */
static void where_blocks_moved(void) {
    enum { BLOCKS = 3, MOST = 32 };
    give_back_first();
    for (size_t size = MIB; size <= 2 * MIB; size *= 2) {
        char *block[BLOCKS], *behind[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            CHECK((block[i] = malloc(size)) && (behind[i] = malloc(size)));
            memset(block[i], i + 1, size);
            memset(behind[i], 0xa5, size);
        }
        for (int i = 0; i < BLOCKS; i++) {
            CHECK((block[i] = realloc(block[i], 2 * size)) && is_full(block[i], size, i + 1));
            memset(block[i] + size, 0x5a, size);
        }
        for (int i = 0; i < BLOCKS; i++) free(block[i]), free(behind[i]);
        malloc_trim(0);
        /* As large as what was there, and smaller ones. */
        for (size_t next = 2 * size; next >= 20000; next /= 5) {
            char *zero[MOST];
            size_t all = 3 * BLOCKS * size / next, count = all < MOST ? all : MOST;
            for (size_t i = 0; i < count; i++) check_zero(zero[i] = calloc(1, next), next);
            for (size_t i = 0; i < count; i++) free(zero[i]);
        }
    }
}

/* What a program gives back goes in parts: slabs of which some blocks stay, and large blocks of any number of OS
   pages. */
static void where_parts_went_back(void) {
    enum { N = 1000, SIZE = 3000 };
    static char *block[N], *stays[N];
    give_back_first();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            CHECK((block[i] = malloc(SIZE)) != NULL);
            memset(block[i], 0xa5, SIZE);
            if (i % 8 == 7) {
                CHECK((stays[i] = malloc(20000 + i * 12)) != NULL);
                memset(stays[i], 0x5a, 20000 + i * 12);
            }
        }
        for (int i = 0; i < N; i++)
            if (i % 16 != 0) free(block[i]);
        for (int i = 0; i < N; i++)
            if (i % 16 != 7) free(stays[i]), stays[i] = NULL;
        malloc_trim(0);
        for (int i = 0; i < N; i++)
            if (i % 16 != 0) check_zero(block[i] = calloc(1, SIZE), SIZE);
        for (int i = 0; i < N; i++) {
            free(block[i]);
            free(stays[i]);
            stays[i] = NULL;
        }
    }
}

/* A thread's random history: blocks of 1 byte to 8 MiB, written whole or in part, resized, freed. */
static void *history(void *of) {
    uint64_t seed = (uintptr_t)of, r;
    const char *rounds = getenv("ROUNDS");
    char *p[SLOTS] = {0};
    size_t size[SLOTS] = {0};
    for (int i = rounds ? atoi(rounds) : 300; i > 0; i--) {
        size_t at = (r = next_random(&seed)) % SLOTS, base = (size_t)1 << (r >> 8) % 23;
        size_t new = base + (r >> 16) % (base + 1), kept;
        switch (r >> 60) {
        case 0 ... 3:
            free(p[at]);
            CHECK((p[at] = malloc(new)) != NULL);
            memset(p[at], 0xa5, r >> 59 & 1 ? new : (new + 1) / 2);
            break;
        case 4 ... 6:
            kept = size[at] < new ? size[at] : new;
            CHECK((p[at] = realloc(p[at], new)) != NULL);
            memset(p[at] + kept, 0x5a, new - kept);
            break;
        case 7 ... 13:
            free(p[at]);
            check_zero(p[at] = calloc(1, new), new);
            for (size_t j = 0; j < new; j += r >> 59 & 1 ? 8191 : 61) p[at][j] = 7;
            break;
        default:
            free(p[at]);
            p[at] = NULL;
            new = 0;
        }
        size[at] = new;
    }
    for (int i = 0; i < SLOTS; i++) free(p[i]);
    return NULL;
}

/* Histories from the numbers in SEEDS (first-last), of several threads at a time. */
static void histories(void) {
    const char *seeds = getenv("SEEDS") ? getenv("SEEDS") : "1-2", *dash = strchr(seeds, '-');
    for (unsigned seed = atoi(seeds), last = atoi(dash ? dash + 1 : seeds); seed <= last; seed++) {
        pthread_t thread[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK_AT(!pthread_create(&thread[i], NULL, history, (void *)(seed * 1000 + i + 1)), seed);
        for (int i = 0; i < THREADS; i++) CHECK_AT(!pthread_join(thread[i], NULL), seed);
    }
}

static const struct test_case CASES[] = {CASE(where_blocks_moved), CASE(where_parts_went_back), CASE(histories)};
TEST_MAIN(CASES)
