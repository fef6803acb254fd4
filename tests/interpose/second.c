/* A second allocator with malloc's whole family: each block has a header, which free checks; it ends the process for a
 * block that is not its own. So a block of neap's that comes here is always detected. Memory is never reused. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MARK 0x5eC0dd5eC0dd5eC0
struct header {
    uint64_t mark, size;
};
static uintptr_t next_free, end;
static int lock;
static unsigned long blocks;

static void *take(size_t alignment, size_t size) {
    size_t whole = sizeof(struct header) + alignment + size;
    if (size > PTRDIFF_MAX / 2 || alignment > (1u << 30)) {
        errno = ENOMEM;
        return NULL;
    }
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) usleep(10);
    if (end - next_free < whole) {
        size_t more = (whole + (64 << 20)) & ~(size_t)4095;
        void *new = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (new == MAP_FAILED) abort();
        next_free = (uintptr_t)new, end = next_free + more;
    }
    uintptr_t at = (next_free + sizeof(struct header) + alignment - 1) & ~(alignment - 1);
    next_free = (at + size + 15) & ~(uintptr_t)15;
    blocks++;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    *((struct header *)at - 1) = (struct header){MARK, size};
    return (void *)at;
}

static struct header *check(void *p) {
    struct header *h = (struct header *)p - 1;
    if (h->mark != MARK) {
        dprintf(2, "second: %p is not mine\n", p);
        abort();
    }
    return h;
}

void *malloc(size_t size) { return take(16, size); }
void *calloc(size_t count, size_t size) {
    size_t whole;
    if (__builtin_mul_overflow(count, size, &whole)) whole = SIZE_MAX;
    return take(16, whole);
}
void free(void *p) {
    if (p) check(p)->mark = 0;
}
void *realloc(void *p, size_t size) {
    void *new = take(16, size);
    if (new && p) {
        size_t old = check(p)->size;
        memcpy(new, p, old < size ? old : size);
        free(p);
    }
    return new;
}
void *reallocarray(void *p, size_t count, size_t size) { return realloc(p, count * size); }
void *memalign(size_t alignment, size_t size) { return take(alignment < 16 ? 16 : alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
void *valloc(size_t size) { return take(4096, size); }
void *pvalloc(size_t size) { return take(4096, (size + 4095) & ~(size_t)4095); }
int posix_memalign(void **out, size_t alignment, size_t size) {
    void *p = memalign(alignment, size);
    if (p) *out = p;
    return p ? 0 : ENOMEM;
}
size_t malloc_usable_size(void *p) { return p ? check(p)->size : 0; }

/* For a plug-in that contains this allocator. */
void *make(size_t size) { return malloc(size); }
void unmake(void *p) { free(p); }

__attribute__((destructor)) static void tell(void) { dprintf(2, "second: %lu blocks\n", blocks); }
