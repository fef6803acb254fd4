/* The table of blocks. A slot is FREE, HELD (it has a block whose bytes are complete) or BUSY (one thread works on it):
   the thread that changes HELD or FREE to BUSY owns the slot. So a child of fork can check all slots that were HELD at
   the fork. */
#include "torture.h"

enum { FREE, BUSY, HELD };
enum { ERRNO = 4711 };

struct slot {
    atomic_int state;
    unsigned char *block;
    size_t size;
    uint64_t number;
};
static struct slot table[SLOTS];
static atomic_ulong numbers = 1;
static atomic_size_t live;
static int guards = -1;

size_t live_bytes(void) { return atomic_load(&live); }

size_t memory_limit(void) {
    const char *text = getenv("TORTURE_MEMORY");
    return text ? strtoull(text, NULL, 0) : (size_t)384 << 20;
}

static uint64_t word_at(uint64_t number, size_t i) { return number * 0x9E3779B97F4A7C15ull + i * 0xD1342543DE82EF95ull; }

static void fill_from(unsigned char *block, size_t from, size_t size, uint64_t number) {
    for (size_t i = from / 8; i < size / 8; i++) {
        uint64_t word = word_at(number, i);
        memcpy(block + i * 8, &word, 8);
    }
    for (size_t i = size / 8 * 8; i < size; i++) block[i] = (unsigned char)(number + i);
}

static void check(const char *where, const unsigned char *block, size_t size, uint64_t number, size_t whole) {
    for (size_t i = 0; i < size / 8; i++) {
        uint64_t word;
        memcpy(&word, block + i * 8, 8);
        if (word != word_at(number, i))
            fail("WRONG BYTES %s: block %p of %zu bytes (now %zu), offset %zu: %016lx instead of %016lx", where,
                 (const void *)block, whole, size, i * 8, (unsigned long)word, (unsigned long)word_at(number, i));
    }
    if (size != whole) return; /* the tail follows another rule */
    for (size_t i = size / 8 * 8; i < size; i++)
        if (block[i] != (unsigned char)(number + i))
            fail("WRONG BYTES %s: block %p of %zu bytes, offset %zu: %02x", where, (const void *)block, size, i, block[i]);
}

/* With harden=on an inaccessible OS page follows each block of whole OS pages: the kernel cannot read it either. Blocks
   that are made in a handler, or while another thread forks, have none: growth (processes.c) checks its own. */
void check_guard(unsigned char *block) {
    static int ends[2];
    if (guards < 0) {
        const char *harden = getenv("NEAP_HARDEN");
        guards = harden && strcmp(harden, "on") == 0 && !calls_fail && pipe(ends) == 0;
    }
    int saved = errno;
    unsigned char *behind = block + ((malloc_usable_size(block) + 4095) & ~(size_t)4095);
    if (guards && !in_handler && !atomic_load(&keeps_memory) && write(ends[1], behind, 1) == 1) fail("NO GUARD behind block %p", (void *)block);
    errno = saved;
}

/* Sizes that have met faults: tails of slabs, whole chunks, one OS page and its neighbours. */
static const size_t special[] = {1,     16,    24,    1000,  3072,  4096,  5000,  8192,   20000,
                                 28000, 32768, 32769, 60000, 65536, 65537, 73728, 300000, 524288};

/* Limit on the bytes of the table, in a memory cgroup: a sixth of its limit. */
static size_t most_bytes(void) {
    static atomic_size_t known;
    size_t most = atomic_load(&known);
    if (!most) atomic_store(&known, most = getenv("TORTURE_MEMORY") ? memory_limit() / 6 : SIZE_MAX);
    return most;
}

static size_t pick_size(uint64_t *seed) {
    if (live_bytes() > most_bytes()) return between(seed, 1, 1024);
    uint64_t kind = below(seed, 100);
    if (sizes == 's' ? kind < 90 : sizes == 'l' ? kind < 10 : kind < 50) return between(seed, 1, 1024);
    if (kind < 70) return between(seed, 1024, 32768);
    if (kind < 80) return special[below(seed, sizeof special / sizeof *special)];
    if (kind < 97) return between(seed, 32768, 1 << 20);
    return between(seed, 1 << 20, 6 << 20);
}

/* One of the calls that allocate, with checks of what each promises. */
static unsigned char *allocate(uint64_t *seed, size_t size) {
    unsigned char *p = NULL;
    size_t alignment = 16;
    errno = ERRNO;
    switch (below(seed, 10)) {
    case 0:
    case 1:
    case 2:
        p = calloc(1, size);
        for (size_t i = 0; p && i < size; i++)
            if (p[i]) fail("NOT ZERO: calloc(%zu), offset %zu: %02x", size, i, p[i]);
        break;
    case 3: {
        alignment = (size_t)16 << below(seed, 13);
        void *made = NULL;
        int result = posix_memalign(&made, alignment, size);
        if (result && (result != ENOMEM || errno != ENOMEM)) fail("posix_memalign returned %d, errno is %d", result, errno);
        p = made;
        break;
    }
    case 4:
        alignment = (size_t)16 << below(seed, 9);
        p = memalign(alignment, size);
        break;
    case 5: p = realloc(NULL, size); break;
    default: p = malloc(size);
    }
    if (!p) {
        if (errno != ENOMEM) fail("NULL for %zu bytes, errno is %d", size, errno);
        return NULL;
    }
    if (errno != ERRNO) fail("ERRNO CHANGED to %d by a call that succeeded", errno);
    if ((uintptr_t)p % alignment && size >= 16) fail("block %p is not aligned to %zu", (void *)p, alignment);
    if (malloc_usable_size(p) < size) fail("block %p of %zu bytes has %zu", (void *)p, size, malloc_usable_size(p));
    return p;
}

static void make(uint64_t *seed, struct slot *s, size_t size) {
    if (atomic_load(&live) + size > MOST_LIVE) return;
    unsigned char *p = allocate(seed, size);
    if (!p) return;
    *s = (struct slot){.state = BUSY, .block = p, .size = size, .number = atomic_fetch_add(&numbers, 1)};
    fill_from(p, 0, size, s->number);
    atomic_fetch_add(&live, size);
}

/* Changes an OS page of a large block, and does not undo it: the next owner of the memory must not get the change. */
static void change_page(struct slot *s) {
    char *page = (char *)(((uintptr_t)s->block + s->number % (s->size - 8191) + 4095) & ~(uintptr_t)4095);
    switch (s->number / 5 % 8) {
    case 0: (void)mprotect(page, 4096, PROT_NONE); break;
    case 1: (void)mprotect(page, 4096, PROT_READ); break;
    case 2: (void)madvise(page, 4096, 102 /* MADV_GUARD_INSTALL */); break;
    case 3: (void)madvise(page, 4096, MADV_DONTFORK); break;
    case 4: (void)madvise(page, 4096, MADV_WIPEONFORK); break;
    case 5: (void)munmap(page, 4096); break;
    case 6: (void)mmap(page, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
    default: (void)mlock(page, 4096);
    }
}

static void release(struct slot *s, const char *where) {
    check(where, s->block, s->size, s->number, s->size);
    if (neap_version && s->size >= 65536 && s->number % 5 == 0) change_page(s);
    atomic_fetch_sub(&live, s->size);
    errno = ERRNO;
    free(s->block);
    if (errno != ERRNO) fail("ERRNO CHANGED to %d by free", errno);
    s->block = NULL;
}

static void resize(struct slot *s, size_t size) {
    check("before realloc", s->block, s->size, s->number, s->size);
    unsigned char *p = realloc(s->block, size);
    if (!p) {
        check("after a realloc that failed", s->block, s->size, s->number, s->size);
        return;
    }
    size_t kept = size < s->size ? size : s->size;
    check("after realloc", p, kept / 8 * 8, s->number, s->size);
    atomic_fetch_add(&live, size - s->size);
    s->block = p;
    s->size = size;
    fill_from(p, kept / 8 * 8, size, s->number);
}

static int enter(struct slot *s) {
    int state = atomic_load(&s->state);
    return state != BUSY && atomic_compare_exchange_strong(&s->state, &state, BUSY) ? state : BUSY;
}
static void leave(struct slot *s) { atomic_store(&s->state, s->block ? HELD : FREE); }

void step(uint64_t *seed, unsigned from, unsigned count) {
    struct slot *s = &table[from + below(seed, count)];
    errno = ERRNO;
    switch (enter(s)) {
    case BUSY: return;
    case FREE: make(seed, s, pick_size(seed)); break;
    default:
        switch (below(seed, 8)) {
        case 0: check("by chance", s->block, s->size, s->number, s->size); break;
        case 1:
        case 2:
            if (atomic_load(&live) < MOST_LIVE) resize(s, one_in(seed, 3) ? s->size + s->size / 8 + 1 : pick_size(seed));
            break;
        default: release(s, "before free");
        }
    }
    if (errno != ERRNO && errno != ENOMEM) fail("ERRNO CHANGED to %d from outside", errno);
    leave(s);
}

void steps(uint64_t *seed, int count) {
    for (int i = 0; i < count; i++) step(seed, 0, SHARED);
}

int make_block(uint64_t *seed, unsigned slot, size_t size) {
    struct slot *s = &table[slot];
    int was = enter(s);
    if (was == BUSY) return 0;
    if (was == FREE) make(seed, s, size);
    int made = was == FREE && s->block;
    leave(s);
    return made;
}

int free_block(unsigned slot) {
    struct slot *s = &table[slot];
    int was = enter(s);
    if (was == BUSY) return 0;
    if (was == HELD) release(s, "before free");
    leave(s);
    return was == HELD;
}

void check_all(const char *where) {
    for (int i = 0; i < SLOTS; i++)
        if (atomic_load(&table[i].state) == HELD)
            check(where, table[i].block, table[i].size, table[i].number, table[i].size);
}

void free_all(void) {
    for (unsigned i = 0; i < SLOTS; i++) free_block(i);
}

int borrow_block(uint64_t *seed, size_t size, unsigned char **block, size_t *length) {
    for (int tries = 0; tries < 200; tries++) {
        int i = (int)below(seed, SHARED);
        int was = enter(&table[i]);
        if (was == BUSY) continue;
        if (was == HELD && table[i].size >= size) {
            *block = table[i].block;
            *length = table[i].size;
            return i;
        }
        leave(&table[i]);
    }
    return -1;
}
void give_back(int slot) { leave(&table[slot]); }
void resize_borrowed(int slot, size_t size) { resize(&table[slot], size); }
