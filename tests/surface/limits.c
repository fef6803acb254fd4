/* The whole family under RLIMIT_AS. */
#include "check.h"
#include <malloc.h>
#include <sys/resource.h>

/* Permits `more` bytes of address space on top of what the process uses. Unused reservations of an allocator go back at
   the first limit. */
static void limit_to(size_t more) {
    struct rlimit limit = {1 << 30, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = ((size_t)status_kib("VmSize:") << 10) + more;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void *take(int how, size_t size) {
    void *p = NULL;
    switch (how % 6) {
    case 0: return malloc(size);
    case 1: return calloc(1, size);
    case 2: return realloc(NULL, size);
    case 3: return aligned_alloc(4096, size);
    case 4: return memalign(64, size);
    default: return posix_memalign(&p, 128, size) ? (errno = ENOMEM, NULL) : p;
    }
}

/* Every function returns NULL with ENOMEM, for large blocks at once, and the process goes on. */
static void family(void) {
    limit_to(64u << 20);
    for (int how = 0; how < 6; how++) {
        for (size_t size = 256u << 20; size < ((size_t)1 << 46); size *= 3) {
            errno = 0;
            CHECK_AT(take(how, size) == NULL, size);
            CHECK_AT(errno == ENOMEM, size);
        }
        char *p = take(how, 1000);
        CHECK_AT(p, how);
        fill(p, 1000, how);
        errno = 0;
        CHECK_AT(realloc(p, 1u << 30) == NULL && errno == ENOMEM, how);
        CHECK_FILL(p, 1000, how);
        free(p);
    }
}

/* Blocks of one size until NULL; at least half of the allowance must be usable; and again after frees. */
static void exhaust(size_t size, size_t allowance) {
    struct link { struct link *next; } *list = NULL, *next;
    size_t first = 0;
    limit_to(allowance);
    for (int round = 0; round < 3; round++) {
        size_t count = 0;
        for (;;) {
            errno = 0;
            struct link *p = take(round % 2, size);
            if (!p) break;
            p->next = list;
            list = p;
            count++;
        }
        CHECK_AT(errno == ENOMEM, round);
        if (round == 0) {
            first = count;
            printf("%zu bytes: %zu of %zu MiB were usable\n", size, count * size >> 20, allowance >> 20);
            CHECK_AT(count * size >= allowance / 4, count * size);
        } else {
            CHECK_AT(count * 2 >= first / 4, count);
        }
        /* Free half of it, in a mixed order, then the rest on the last round. */
        struct link *kept = NULL;
        for (int odd = 0; list; list = next, odd++) {
            next = list->next;
            if (odd % 2 || round == 2) free(list);
            else list->next = kept, kept = list;
        }
        list = kept;
    }
    free(take(0, size));
}
static void exhaust_small(void) { exhaust(48, 64u << 20); }
static void exhaust_medium(void) { exhaust(5000, 96u << 20); }
static void exhaust_large(void) { exhaust(300000, 128u << 20); }

/* The limit is set before the program starts: it must start all the same, and allocate. */
static void from_the_start(void) {
    if (!getenv("LIMITED")) {
        struct rlimit limit = {128u << 20, 128u << 20};
        CHECK(setenv("LIMITED", "1", 1) == 0);
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        execl("/proc/self/exe", "limits", "from_the_start", NULL);
        CHECK(!"exec works");
    }
    char *p[200];
    for (int i = 0; i < 200; i++) {
        p[i] = malloc(100000);
        CHECK_AT(p[i], i);
        fill(p[i], 100000, i);
    }
    for (int i = 0; i < 200; i++) {
        CHECK_FILL(p[i], 100000, i);
        free(p[i]);
    }
    CHECK(malloc(1u << 30) == NULL);
}

static const struct test_case CASES[] = {
    CASE(family), CASE(exhaust_small), CASE(exhaust_medium), CASE(exhaust_large), CASE(from_the_start),
};
TEST_MAIN(CASES)
