/* A program with an allocator of its own on top of the C library's second names: it calls itself for ever if such a
   name leads to an interposable one. */
#include "trust.h"

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long calls;

void *malloc(size_t size) {
    calls++;
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
    calls++;
    return __libc_calloc(count, size);
}
void *realloc(void *block, size_t size) {
    calls++;
    return __libc_realloc(block, size);
}
void *memalign(size_t alignment, size_t size) {
    calls++;
    return __libc_memalign(alignment, size);
}
void free(void *block) {
    calls++;
    __libc_free(block);
}

/* Each call reaches the wrapper once, and no other function of it. */
#define ONCE(call)                                                                                     \
    do {                                                                                               \
        long before_ = calls;                                                                          \
        call;                                                                                          \
        CHECK_AT(calls == before_ + 1, calls - before_);                                               \
    } while (0)

static void each_call_once(void) {
    char *p;
    ONCE(p = malloc(100));
    CHECK(p);
    memset(p, 1, 100);
    ONCE(p = realloc(p, 5000));
    CHECK(p && p[99] == 1);
    ONCE(p = realloc(p, 5000000));
    CHECK(p && p[99] == 1);
    ONCE(free(p));
    ONCE(p = calloc(10, 10));
    CHECK(p && p[99] == 0);
    ONCE(free(p));
    ONCE(p = memalign(64, 100));
    CHECK(p && (uintptr_t)p % 64 == 0);
    ONCE(free(p));
}

static const struct test_case cases[] = {CASE(each_call_once)};
TEST_MAIN(cases)
