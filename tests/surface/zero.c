/* calloc of memory that was used, resized and given back before. */
#include "check.h"
#include <malloc.h>

enum { MIB = 1 << 20, SLOTS = 64, THREADS = 4 };

static void check_zero(const char *p, size_t size) {
    CHECK_AT(p != NULL, size);
    for (size_t i = 0; i < size; i++) CHECK_AT(p[i] == 0, i);
}

/* Blocks that another one hinders from growing move. What they leave behind goes back, and is handed out again. */
static void where_blocks_moved(void) {
    for (size_t size = MIB; size <= 8 * MIB; size *= 2) {
        char *block[4], *behind[4];
        for (int i = 0; i < 4; i++) {
            block[i] = malloc(size);
            behind[i] = malloc(size);
            CHECK_AT(block[i] && behind[i], size);
            fill(block[i], size, i);
            memset(behind[i], 0xa5, size);
        }
        for (int i = 0; i < 4; i++) {
            block[i] = realloc(block[i], 2 * size);
            CHECK_AT(block[i], size);
            CHECK_FILL(block[i], size, i);
            memset(block[i] + size, 0x5a, size);
        }
        for (int i = 0; i < 4; i++) {
            free(block[i]);
            free(behind[i]);
        }
        malloc_trim(0);
        /* As large as what was there, and small ones. */
        for (size_t next = 2 * size; next >= 20000; next /= 4) {
            enum { MOST = 64 };
            char *zero[MOST];
            size_t count = 12 * size / next < MOST ? 12 * size / next : MOST;
            for (size_t i = 0; i < count; i++) check_zero(zero[i] = calloc(1, next), next);
            for (size_t i = 0; i < count; i++) free(zero[i]);
        }
    }
}

/* What a program gives back goes in parts: slabs of which some blocks stay, and large blocks of any number of OS
   pages. */
static void where_parts_went_back(void) {
    enum { N = 4000, SIZE = 3000 };
    static char *block[N], *stays[N];
    for (int round = 0; round < 3; round++) {
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
