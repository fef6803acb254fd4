/* Actors that live in one process: workers, waves, threads of all kinds, small stacks, trims, rests. */
#include "torture.h"
#include <limits.h>

void *worker(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("worker");
    may_fork = 1;
    while (!atomic_load(&stop)) {
        if (atomic_load(&resting))
            nap_us(5000);
        else
            steps(&seed, 50);
        progress(slot);
    }
    may_fork = 0;
    progress_end(slot);
    return unused;
}

/* Many blocks of one size; some freed and made again; a rest, in which OS pages between them may go; all freed, and the
   memory used for another size at once. */
void *waves(void *unused) {
    static const size_t some[] = {48, 500, 1000, 3072, 5000, 7000, 12000, 20000, 28000, 60000, 65536, 100000};
    enum { KINDS = sizeof some / sizeof *some, BYTES = 24 << 20 };
    uint64_t seed = new_seed();
    int slot = progress_begin("waves");
    unsigned used = 0;
    while (!atomic_load(&stop)) {
        size_t size = some[below(&seed, KINDS)];
        unsigned count = BYTES / size < WAVES ? (unsigned)(BYTES / size) : WAVES, every = 2 + (unsigned)below(&seed, 20);
        for (unsigned i = 0; i < used; i++) free_block(SHARED + i);
        progress(slot);
        for (unsigned i = 0; i < count; i++) make_block(&seed, SHARED + i, size);
        for (unsigned i = 0; i < count; i++)
            if (every < 12 ? i % every == 0 : i % every != 0) free_block(SHARED + i);
        if (one_in(&seed, 2))
            for (unsigned i = 0; i < count; i++) make_block(&seed, SHARED + i, size);
        used = count;
        rest(slot, one_in(&seed, 3) ? 0 : (long)below(&seed, 700));
    }
    progress_end(slot);
    return unused;
}

static pthread_key_t key;
static atomic_int rounds;

static void end_of_thread(void *left) {
    uint64_t seed = new_seed();
    steps(&seed, 5);
    if ((intptr_t)left > 1) pthread_setspecific(key, (void *)((intptr_t)left - 1));
}

static void *waits(void *unused) {
    nap_us(1000);
    return unused;
}
static void *works(void *unused) {
    uint64_t seed = new_seed();
    steps(&seed, 200);
    return unused;
}
static void *works_at_its_end(void *unused) {
    uint64_t seed = new_seed();
    if (one_in(&seed, 2)) steps(&seed, 20);
    pthread_setspecific(key, (void *)(intptr_t)between(&seed, 1, 4));
    return unused;
}
/* Fills slabs and leaves holes in them, while other threads may use them. */
static void *leaves_holes(void *unused) {
    enum { COUNT = 420 };
    uint64_t seed = new_seed();
    unsigned char *p[COUNT];
    size_t size = between(&seed, 2000, 6000);
    for (int i = 0; i < COUNT; i++) {
        p[i] = malloc(size);
        if (p[i]) memset(p[i], i | 1, size);
    }
    for (int k = 0; k < 6; k++) {
        for (int i = 0; i < COUNT; i++)
            if (p[i] && one_in(&seed, 4)) {
                free(p[i]);
                p[i] = NULL;
            }
        nap_us((long)between(&seed, 100, 2000));
    }
    for (int i = 0; i < COUNT; i++) {
        for (size_t k = 0; p[i] && k < size; k++)
            if (p[i][k] != (unsigned char)(i | 1)) fail("WRONG BYTES in a thread's own block at %zu", k);
        free(p[i]);
    }
    return unused;
}
void *holes(void *unused) {
    enum { COUNT = 4 };
    int slot = progress_begin("holes");
    while (!atomic_load(&stop)) {
        pthread_t t[COUNT];
        int started = 0;
        for (int i = 0; i < COUNT; i++) started += start_thread(&t[started], leaves_holes, NULL, 0, 0, 0);
        for (int i = 0; i < started; i++, progress(slot)) pthread_join(t[i], NULL);
        progress(slot);
    }
    progress_end(slot);
    return unused;
}

static void *is_cancelled(void *unused) {
    uint64_t seed = new_seed();
    for (int i = 0; i < 100; i++) {
        steps(&seed, 5);
        pthread_testcancel();
    }
    return unused;
}

/* A thread on a stack of the program's that is unmapped as soon as the thread has ended. */
static void on_own_stack(uint64_t *seed) {
    enum { STACK = 128 << 10 };
    pthread_t t;
    pthread_attr_t attributes;
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) return;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    if (pthread_create(&t, &attributes, one_in(seed, 2) ? works : works_at_its_end, NULL) == 0) pthread_join(t, NULL);
    munmap(stack, STACK);
}

/* The C library loads what cancellation needs at its first use, and aborts where it has no memory for that. */
void cancel_once(void) {
    pthread_t t;
    if (!start_thread(&t, is_cancelled, NULL, 0, 0, 0)) return;
    pthread_cancel(t);
    pthread_join(t, NULL);
}

void *lives(void *unused) {
    static void *(*const bodies[])(void *) = {waits, waits, works, works_at_its_end, leaves_holes, leaves_holes};
    enum { MOST = 20 };
    uint64_t seed = new_seed();
    int slot = progress_begin("lives"), no_key = 0;
    if (atomic_fetch_add(&rounds, 1) == 0) no_key = pthread_key_create(&key, end_of_thread);
    while (!atomic_load(&stop) && !no_key) {
        pthread_t t[MOST];
        int started = 0, count = (int)between(&seed, 1, MOST), detached = one_in(&seed, 2);
        void *(*body)(void *) = bodies[below(&seed, sizeof bodies / sizeof *bodies)];
        int cancel = !detached && one_in(&seed, 6);
        for (int i = 0; i < count; i++)
            started += start_thread(&t[started], cancel ? is_cancelled : body, NULL, 0, detached, 0);
        for (int i = 0; i < started && cancel; i++) pthread_cancel(t[i]);
        for (int i = 0; i < started && !detached; i++, progress(slot)) pthread_join(t[i], NULL);
        if (detached) nap_us(20000);
        on_own_stack(&seed);
        progress(slot);
        if (one_in(&seed, 10)) rest(slot, 200);
    }
    progress_end(slot);
    return unused;
}

/* Large blocks that are freed before the thread ends. */
static void fill_and_free(void) {
    enum { COUNT = 20 };
    char *p[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        if ((p[i] = i % 2 ? malloc(3 << 20) : calloc(3, 300000))) memset(p[i], 1, 900000);
    for (int i = 0; i < COUNT; i++) free(p[i]);
}

/* Reports progress in the actor's slot: near a memory limit each refused call makes handshakes with all threads, which
   takes long where system calls are late. */
static void *on_little_stack(void *slot) {
    uint64_t seed = new_seed();
    if (one_in(&seed, 3)) fill_and_free();
    switch (below(&seed, 4)) {
    case 0: malloc_trim(0); break;
    case 1: (void)mallinfo2(); break;
    }
    for (int i = 0; i < 20; i++, progress((int)(intptr_t)slot)) steps(&seed, 5);
    if (one_in(&seed, 4)) malloc_trim(0);
    return NULL;
}
void *small_stacks(void *unused) {
    enum { MOST = 16 };
    uint64_t seed = new_seed();
    int slot = progress_begin("small_stacks");
    while (!atomic_load(&stop)) {
        pthread_t t[MOST];
        int started = 0;
        for (int i = 0; i < MOST; i++) started += start_thread(&t[started], on_little_stack, (void *)(intptr_t)slot, PTHREAD_STACK_MIN, 0, 0);
        for (int i = 0; i < started; i++, progress(slot)) pthread_join(t[i], NULL);
        if (one_in(&seed, 5)) rest(slot, 100);
        progress(slot);
    }
    progress_end(slot);
    return unused;
}

atomic_long threshold_kib;

/* Memory may wait up to this limit; where no helper can run, it stays. */
static void set_threshold(long n) {
    int bytes = (int)((64 << 20) + n % 2 * 4096);
    atomic_store(&threshold_kib, bytes >> 10);
    mallopt(M_TRIM_THRESHOLD, bytes);
}

void *trims(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("trims");
    for (long n = 0; !atomic_load(&stop); n++, progress(slot)) {
        switch (below(&seed, 8)) {
        case 0: (void)mallinfo2(); break;
        case 1:
            if (nowhere) malloc_info(0, nowhere);
            break;
        case 2: malloc_trim(below(&seed, 1 << 20)); break;
        case 3:
        case 4: set_threshold(n); break;
        default: malloc_trim(0);
        }
        if (one_in(&seed, 20)) rest(slot, (long)below(&seed, 100));
    }
    progress_end(slot);
    return unused;
}

/* Keeps setting an option for a while: each change requests the helper, which is just being started. */
void *options(void *unused) {
    int slot = progress_begin("options");
    while (!atomic_load(&stop)) {
        for (long n = 0, end = now_ms() + 1500; now_ms() < end && !atomic_load(&stop); n++, progress(slot))
            set_threshold(n);
        rest(slot, 3000);
    }
    progress_end(slot);
    return unused;
}

/* All others rest sometimes, so that the helper finds what they left and ends, and holes go back. */
void *rests(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("rests");
    while (!atomic_load(&stop)) {
        rest(slot, (long)between(&seed, 50, 600));
        atomic_store(&resting, 1);
        rest(slot, (long)between(&seed, 100, 1300));
        atomic_store(&resting, 0);
    }
    progress_end(slot);
    return unused;
}

/* ---- A crowd */

enum { CROWD = 160, HANDED = 512, OWN = 24 };

/* Blocks that threads of a crowd hand each other. The first word is the size, and the other bytes follow from it. */
static _Atomic(unsigned char *) handed[HANDED];

static unsigned char *make_gift(uint64_t *seed) {
    size_t size = one_in(seed, 4) ? between(seed, 8, 4200) : between(seed, 8, 500);
    int zeroed = one_in(seed, 3);
    unsigned char *p = zeroed ? calloc(1, size) : malloc(size);
    for (size_t i = 0; p && zeroed && i < size; i++)
        if (p[i]) fail("NOT ZERO: calloc(%zu) in a crowd, offset %zu: %02x", size, i, p[i]);
    if (p && malloc_usable_size(p) < size) fail("block %p of %zu bytes has %zu", (void *)p, size, malloc_usable_size(p));
    if (p) memcpy(p, &size, sizeof size);
    for (size_t i = 8; p && i < size; i++) p[i] = (unsigned char)(size * 7 + i);
    return p;
}

static void free_gift(unsigned char *p) {
    size_t size;
    if (!p) return;
    memcpy(&size, p, sizeof size);
    if (size < 8 || size > 4200) fail("WRONG BYTES in a gift %p, its size is %zu", (void *)p, size);
    for (size_t i = 8; i < size; i++)
        if (p[i] != (unsigned char)(size * 7 + i)) fail("WRONG BYTES in a gift %p of %zu bytes, offset %zu: %02x", (void *)p, size, i, p[i]);
    free(p);
}

/* A few blocks of many sizes: of each size too few for a slab of the thread's own. */
static void *in_a_crowd(void *unused) {
    uint64_t seed = new_seed();
    unsigned char *own[OWN] = {NULL};
    for (int round = (int)between(&seed, 1, 12); round > 0 && !atomic_load(&stop); round--) {
        for (int i = 0; i < OWN; i++) {
            free_gift(own[i]);
            own[i] = one_in(&seed, 3) ? atomic_exchange(&handed[below(&seed, HANDED)], make_gift(&seed)) : make_gift(&seed);
        }
        steps(&seed, 8);
        nap_us((long)below(&seed, 20000));
    }
    for (int i = 0; i < OWN; i++) free_gift(own[i]);
    return unused;
}

/* More threads than take slabs of their own for their first blocks. As one ends, the next one begins. */
void *crowd(void *unused) {
    static pthread_t t[CROWD];
    uint64_t seed = new_seed();
    int slot = progress_begin("crowd"), started = 0;
    while (!atomic_load(&stop)) {
        for (int most = (int)between(&seed, 66, CROWD); started < most; progress(slot))
            if (!start_thread(&t[started++], in_a_crowd, NULL, 64 << 10, 0, 0)) {
                started--;
                break;
            }
        /* All of them sometimes, so that the next ones adopt many heaps. */
        for (int keep = one_in(&seed, 3) ? 0 : (int)below(&seed, 100); started > keep; progress(slot)) pthread_join(t[--started], NULL);
        if (one_in(&seed, 8)) rest(slot, (long)below(&seed, 700));
        progress(slot);
    }
    for (; started > 0; progress(slot)) pthread_join(t[--started], NULL);
    for (int i = 0; i < HANDED; i++) free_gift(atomic_exchange(&handed[i], NULL));
    progress_end(slot);
    return unused;
}

/* A block of garbage: its first words, and a word in each OS page. */
struct litter {
    struct litter *next;
    size_t size;
    uint64_t number;
};
static uint64_t litter_at(const struct litter *l, size_t at) { return l->number ^ at * 0xD1342543DE82EF95ull; }

static struct litter *make_litter(struct litter *next, size_t size) {
    static atomic_ulong numbers = 1;
    struct litter *l = malloc(size);
    if (!l) return NULL;
    *l = (struct litter){next, size, atomic_fetch_add(&numbers, 0x9E3779B97F4A7C15ull)};
    for (size_t at = 4096; at + 8 <= size; at += 4096) {
        uint64_t word = litter_at(l, at);
        memcpy((char *)l + at, &word, 8);
    }
    return l;
}

static void free_litter(struct litter *l) {
    for (size_t at = 4096; at + 8 <= l->size; at += 4096) {
        uint64_t word;
        memcpy(&word, (char *)l + at, 8);
        if (word != litter_at(l, at)) fail("WRONG BYTES in garbage %p of %zu bytes, offset %zu", (void *)l, l->size, at);
    }
    free(l);
}

/* Memory of the program's own, which neap does not know. */
static void use_other_memory(int slot, size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; p != MAP_FAILED && at < bytes; at += 4096) {
        p[at] = 1;
        if (at % (1 << 20) == 0) progress(slot);
    }
    if (p != MAP_FAILED) munmap(p, bytes);
}

static struct litter *litter_up(uint64_t *seed, int slot, struct litter *all, size_t low, size_t bytes) {
    size_t taken = 0;
    for (struct litter *l = all; l; l = l->next) taken += l->size;
    for (int i = 0; taken < bytes; i++) {
        struct litter *l = make_litter(all, between(seed, low, low * 5));
        if (!l) break;
        all = l;
        taken += l->size;
        if (i % 512 == 0) progress(slot);
    }
    return all;
}

/* Frees all; or all but one in twenty of the blocks on some OS pages, which it returns. */
static struct litter *clean_up(uint64_t *seed, struct litter *all, int keep) {
    struct litter *kept = NULL;
    for (struct litter *l = all, *next; l; l = next) {
        next = l->next;
        if (keep && l->size >= 16 << 10 && one_in(seed, 20)) {
            l->next = kept;
            kept = l;
        } else
            free_litter(l);
    }
    return kept;
}

/* Comes near the process's memory limit and frees nearly all, again and again, with blocks of other sizes or with
   memory that is not neap's. Of the freed memory at most a quarter of the limit may wait, and nothing where the program
   needs it: otherwise the process is killed. A sixth of the limit is left for the table of blocks, and 48 MiB for sizes
   that are rounded up, and for OS pages used in part. */
void *garbage(void *unused) {
    static const size_t least[] = {500, 2000, 16 << 10, 100 << 10, 1 << 20};
    const size_t limit = memory_limit(), others = limit / 6 + (48 << 20), most = limit / 6 * 5 - others;
    uint64_t seed = new_seed();
    int slot = progress_begin("garbage");
    struct litter *all = NULL;
    for (; !atomic_load(&stop); progress(slot)) {
        all = litter_up(&seed, slot, all, least[below(&seed, sizeof least / sizeof *least)], most - below(&seed, most / 2));
        if (one_in(&seed, 3)) rest(slot, (long)below(&seed, 300));
        int alone = one_in(&seed, 2);
        all = clean_up(&seed, all, alone);
        if (one_in(&seed, 4)) rest(slot, (long)below(&seed, 300));
        if (!alone) use_other_memory(slot, limit / 4 * 3 - others);
    }
    clean_up(&seed, all, 0);
    progress_end(slot);
    return unused;
}
