/* A program that defines a part of malloc's family itself, on top of the names that it leaves to the C library. A call
 * inside the allocator through one of these names would come back here, without end. -D selects the parts. */
#include "check.h"
#include <malloc.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* Calls of this program's own functions, and how many of them are active in this thread. */
static unsigned long calls;
static __thread int depth;
#define ENTER (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED), (void)(++depth < 8 ? 0 : (dprintf(2, "recursion\n"), abort(), 0)))
#define LEAVE(result)             \
    do {                          \
        void *result_ = (result); \
        depth--;                  \
        return result_;           \
    } while (0)

#ifdef OWN_MALLOC
void *malloc(size_t size) { ENTER; LEAVE(__libc_malloc(size)); }
#endif
#ifdef OWN_CALLOC
void *calloc(size_t count, size_t size) { ENTER; LEAVE(__libc_calloc(count, size)); }
#endif
#ifdef OWN_REALLOC
void *realloc(void *p, size_t size) { ENTER; LEAVE(__libc_realloc(p, size)); }
#endif
#ifdef OWN_MEMALIGN
void *memalign(size_t alignment, size_t size) { ENTER; LEAVE(__libc_memalign(alignment, size)); }
#endif
#ifdef OWN_MEMALIGN_BY_POSIX
/* For systems that lack a memalign. */
void *memalign(size_t alignment, size_t size) {
    ENTER;
    void *p;
    if (posix_memalign(&p, alignment < sizeof p ? sizeof p : alignment, size)) p = NULL;
    LEAVE(p);
}
#endif
#ifdef OWN_REALLOC_BY_MALLOC
void *realloc(void *p, size_t size) {
    ENTER;
    void *new = malloc(size);
    if (new && p) {
        size_t old = malloc_usable_size(p);
        memcpy(new, p, old < size ? old : size);
        free(p);
    }
    LEAVE(new);
}
#endif
#ifdef OWN_FREE
void free(void *p) {
    ENTER;
    __libc_free(p);
    depth--;
}
#endif

static void *work(void *arg) {
    uint64_t seed = 7 + (uintptr_t)arg;
    for (int i = 0; i < 5000; i++) {
        size_t size = next_random(&seed) % (i % 50 ? 3000 : 400000), more = size * 3 / 2 + 1;
        void *aligned = NULL;
        char *p[6] = {malloc(size),        calloc(1, size), realloc(NULL, size),
                      memalign(128, size), valloc(size),    aligned_alloc(64, size)};
        CHECK(posix_memalign(&aligned, 256, size) == 0);
        free(aligned);
        for (int k = 0; k < 6; k++) {
            CHECK_AT(p[k], size);
            fill(p[k], size, i + k);
            if (i % 3 == 0) p[k] = k % 2 ? reallocarray(p[k], more, 1) : realloc(p[k], more);
            CHECK_AT(p[k], more);
            CHECK_FILL(p[k], size, i + k);
            free(p[k]);
        }
        char *copy = strdup("made by the C library");
        CHECK(copy);
        free(copy);
    }
    return arg;
}

static void all_calls(void) {
    pthread_t t[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
#ifndef OWN_NOTHING
    CHECK(calls > 1000);
#endif
}

static const struct test_case CASES[] = {CASE(all_calls)};
TEST_MAIN(CASES)
