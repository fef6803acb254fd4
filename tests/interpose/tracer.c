/* A library in front of another allocator, or behind it, that passes every call on: through dlsym(RTLD_NEXT), as heap
 * tracers do, or with -DBY_LIBC_NAMES through the C library's second names. Prints at exit how often it was called. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static unsigned long calls;
#define COUNT ((void)__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED))

#ifdef BY_LIBC_NAMES
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
void *malloc(size_t size) { return COUNT, __libc_malloc(size); }
void free(void *p) { COUNT, __libc_free(p); }
void *calloc(size_t count, size_t size) { return COUNT, __libc_calloc(count, size); }
void *realloc(void *p, size_t size) { return COUNT, __libc_realloc(p, size); }
void *memalign(size_t alignment, size_t size) { return COUNT, __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return COUNT, __libc_memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size) {
    COUNT;
    void *p = __libc_memalign(alignment, size);
    if (p) *out = p;
    return p ? 0 : ENOMEM;
}
#else
/* dlsym allocates (its error text): these requests are served from here, and never freed. */
static _Alignas(16) char early[4096];
static size_t early_used;
static __thread int searching __attribute__((tls_model("initial-exec")));
static void *take_early(size_t size) {
    size_t at = __atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15, __ATOMIC_RELAXED);
    return at + size <= sizeof early ? early + at : NULL;
}
static int is_early(void *p) { return (char *)p >= early && (char *)p < early + sizeof early; }

#define NEXT(name)                                      \
    static __typeof__(&name) next;                      \
    if (!next) {                                        \
        searching++;                                    \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        searching--;                                    \
    }                                                   \
    COUNT
void *malloc(size_t), free(void *), *calloc(size_t, size_t), *realloc(void *, size_t), *memalign(size_t, size_t);
void *aligned_alloc(size_t, size_t);
int posix_memalign(void **, size_t, size_t);

void *malloc(size_t size) {
    if (searching) return take_early(size);
    NEXT(malloc);
    return next(size);
}
void *calloc(size_t count, size_t size) {
    if (searching) return take_early(count * size);
    NEXT(calloc);
    return next(count, size);
}
void free(void *p) {
    if (searching || is_early(p)) return;
    NEXT(free);
    next(p);
}
void *realloc(void *p, size_t size) {
    if (searching) return take_early(size);
    NEXT(realloc);
    return next(p, size);
}
void *memalign(size_t alignment, size_t size) {
    NEXT(memalign);
    return next(alignment, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
    NEXT(aligned_alloc);
    return next(alignment, size);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    NEXT(posix_memalign);
    return next(out, alignment, size);
}
#endif

__attribute__((destructor)) static void tell(void) { dprintf(2, "tracer: %lu calls\n", calls); }
