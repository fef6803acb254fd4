/* Counts each block of a program exactly, for comparison with samples: stands in front of neap, passes each call on, and
 * keeps its figures in the file that COUNTER_FILE names, so that they are there after SIGKILL too.
 *
 * The size of each block lies in a table beside the address space. A realloc counts as in neap's profiles: a block that
 * keeps its address and its usable size stays as it is; any other is freed, and allocated with its whole new size. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What the test reads. */
struct figures {
    _Atomic uint64_t blocks, bytes, freed_blocks, freed_bytes;
};
/* Used until the environment can be read. */
static struct figures at_first, *figures = &at_first;

/* Sizes of blocks, plus 1: a leaf for each GiB of addresses, a word for each 16 bytes. */
enum { GIB = 30, LEAVES = 1 << (47 - GIB) };
static _Atomic(_Atomic uint64_t *) leaves[LEAVES];

static void *map(size_t bytes, int flags, int fd) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

static _Atomic uint64_t *place(void *block) {
    const size_t bytes = ((size_t)1 << GIB) / 16 * sizeof(uint64_t);
    uintptr_t at = (uintptr_t)block;
    _Atomic(_Atomic uint64_t *) *leaf = &leaves[at >> GIB];
    _Atomic uint64_t *found = atomic_load(leaf);
    if (!found) {
        _Atomic uint64_t *made = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
        if (atomic_compare_exchange_strong(leaf, &found, made)) found = made;
        else munmap((void *)made, bytes);
    }
    return &found[(at & (((uintptr_t)1 << GIB) - 1)) / 16];
}

/* A child's blocks do not count as its parent's. */
static void in_child(void) { figures = map(sizeof *figures, MAP_PRIVATE | MAP_ANONYMOUS, -1); }

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("COUNTER_FILE");
    /* Only the first process: programs that it executes would start from zero. */
    int fd = name ? open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof *figures)) return;
    struct figures *shared = map(sizeof *figures, MAP_SHARED, fd);
    close(fd);
    memcpy((void *)shared, (void *)&at_first, sizeof at_first);
    figures = shared;
    pthread_atfork(NULL, NULL, in_child);
}

static void *count(void *block, size_t size) {
    if (!block) return NULL;
    atomic_store(place(block), size + 1);
    atomic_fetch_add(&figures->blocks, 1);
    atomic_fetch_add(&figures->bytes, size);
    return block;
}

static uint64_t forget(void *block) {
    uint64_t size = block ? atomic_exchange(place(block), 0) : 0;
    if (size) {
        atomic_fetch_add(&figures->freed_blocks, 1);
        atomic_fetch_add(&figures->freed_bytes, size - 1);
    }
    return size;
}

/* dlsym allocates (its error text): these requests are served from here, and never freed. */
static _Alignas(16) char early[4096];
static _Atomic size_t early_used;
static __thread int searching __attribute__((tls_model("initial-exec")));
static void *take_early(size_t size) {
    size_t at = atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15);
    return at + size <= sizeof early ? early + at : NULL;
}
static int is_early(void *p) { return (char *)p >= early && (char *)p < early + sizeof early; }

#define NEXT(name)                                         \
    static __typeof__(&name) next;                         \
    if (!next) {                                           \
        searching++;                                       \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        searching--;                                       \
    }

void *malloc(size_t size) {
    if (searching) return take_early(size);
    NEXT(malloc);
    return count(next(size), size);
}
void *calloc(size_t number, size_t size) {
    if (searching) return take_early(number * size);
    NEXT(calloc);
    return count(next(number, size), number * size);
}
void free(void *p) {
    if (searching || is_early(p)) return;
    NEXT(free);
    forget(p);
    next(p);
}
void *realloc(void *p, size_t size) {
    if (searching) return take_early(size);
    NEXT(realloc);
    size_t room = p ? malloc_usable_size(p) : 0;
    uint64_t before = forget(p);
    void *after = next(p, size);
    if (after && after == p && before && malloc_usable_size(after) == room) {
        /* The block stayed as it was. */
        atomic_store(place(p), before);
        atomic_fetch_sub(&figures->freed_blocks, 1);
        atomic_fetch_sub(&figures->freed_bytes, before - 1);
        return after;
    }
    return count(after, size);
}
void *reallocarray(void *p, size_t number, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(number, size, &bytes)) return errno = ENOMEM, NULL;
    return realloc(p, bytes);
}
void *memalign(size_t alignment, size_t size) {
    NEXT(memalign);
    return count(next(alignment, size), size);
}
void *aligned_alloc(size_t alignment, size_t size) {
    NEXT(aligned_alloc);
    return count(next(alignment, size), size);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    NEXT(posix_memalign);
    int error = next(out, alignment, size);
    if (!error) count(*out, size);
    return error;
}

/* C++: new and delete without an alignment; these programs do not use those with one. */
void *_Znwm(size_t size) { return malloc(size); }
void *_Znam(size_t size) { return malloc(size); }
void *_ZnwmRKSt9nothrow_t(size_t size, const void *tag) { return (void)tag, malloc(size); }
void *_ZnamRKSt9nothrow_t(size_t size, const void *tag) { return (void)tag, malloc(size); }
void _ZdlPv(void *p) { free(p); }
void _ZdaPv(void *p) { free(p); }
void _ZdlPvm(void *p, size_t size) { (void)size, free(p); }
void _ZdaPvm(void *p, size_t size) { (void)size, free(p); }
void _ZdlPvRKSt9nothrow_t(void *p, const void *tag) { (void)tag, free(p); }
void _ZdaPvRKSt9nothrow_t(void *p, const void *tag) { (void)tag, free(p); }
