/* Actors of huge pages, ranges and profiles: `dense`, `ranges`, `profiles`. All but `dense` need neap's own calls,
   which are looked up when the program is loaded. */
#include "torture.h"
#include "../../include/neap.h"

#pragma weak neap_profile_start
#pragma weak neap_profile_stop
#pragma weak neap_profile_write
#pragma weak neap_profile_pass
#pragma weak neap_result_text
#pragma weak neap_range_alloc
#pragma weak neap_range_free
#pragma weak neap_advise
#pragma weak neap_prefault
#pragma weak neap_resident_get

/* Whether the system may refuse what it has. */
static int may_refuse(void) { return calls_fail || atomic_load(&filtered) || atomic_load(&keeps_memory); }

/* A word that follows from its address and a number. */
static uint64_t word_of(const uint64_t *at, uint64_t number) {
    return ((uintptr_t)at ^ number) * 0x9E3779B97F4A7C15ull + number;
}
static void fill_words(void *start, size_t bytes, uint64_t number) {
    for (uint64_t *at = start, *end = at + bytes / 8; at < end; at++) *at = word_of(at, number);
}
/* `moved` is where the words were when they were written. */
static void check_words(const char *what, const void *start, const void *moved, size_t bytes, uint64_t number) {
    const uint64_t *at = start, *was = moved;
    for (size_t i = 0; i < bytes / 8; i++)
        if (at[i] != word_of(was + i, number))
            fail("WRONG BYTES in %s at %p, %zu bytes: offset %zu is %016lx instead of %016lx", what, start, bytes, i * 8,
                 (unsigned long)at[i], (unsigned long)word_of(was + i, number));
}
static void check_zero(const char *what, const void *start, size_t bytes) {
    const uint64_t *at = start;
    for (size_t i = 0; i < bytes / 8; i++)
        if (at[i]) fail("NOT ZERO: %s at %p, %zu bytes: offset %zu", what, start, bytes, i * 8);
}

/* ---- dense: enough memory, all of it touched, that huge areas are filled and blocks are promoted */

enum { DENSE_MIB = 160, MOST_DENSE = 1 << 19 };
struct dense {
    char *block;
    size_t size;
};

static int dense_make(struct dense *d, size_t size, uint64_t number, uint64_t *seed) {
    int zero = one_in(seed, 4);
    d->size = size;
    d->block = zero ? calloc(1, size) : one_in(seed, 10) ? memalign((size_t)64 << below(seed, 16), size) : malloc(size);
    if (!d->block) return 0;
    if (zero) check_zero("calloc", d->block, size);
    fill_words(d->block, size, number);
    return 1;
}
static void dense_free(struct dense *d, uint64_t number) {
    check_words("a dense block", d->block, d->block, d->size, number);
    free(d->block);
    d->block = NULL;
}
static void dense_resize(struct dense *d, size_t size, uint64_t number) {
    char *before = d->block, *p = realloc(d->block, size);
    size_t kept = p && size < d->size ? size : d->size;
    check_words("a resized block", p ? p : before, before, kept / 8 * 8, number);
    if (!p) return;
    d->block = p;
    d->size = size;
    fill_words(p, size, number);
}

void *dense(void *unused) {
    static const size_t sizes_of[][2] = {{64, 64}, {200, 3000}, {4096, 32768}, {60000, 60000}, {65536, 1 << 20}, {1 << 20, 64 << 20}};
    uint64_t seed = new_seed(), number = new_seed();
    int slot = progress_begin("dense");
    size_t table = MOST_DENSE * sizeof(struct dense);
    struct dense *all = mmap(NULL, table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (!atomic_load(&stop) && all != MAP_FAILED) {
        const size_t *range = sizes_of[below(&seed, sizeof sizes_of / sizeof *sizes_of)];
        size_t count = 0, bytes = 0;
        while (bytes < (size_t)DENSE_MIB << 20 && count < MOST_DENSE && !atomic_load(&stop)) {
            struct dense *d = &all[count];
            if (!dense_make(d, between(&seed, range[0], range[1]), number, &seed)) break;
            bytes += d->size;
            count++;
            if (one_in(&seed, 256) || d->size > 1 << 20) progress(slot);
        }
        /* Promotion begins a second after growth. */
        rest(slot, one_in(&seed, 2) ? (long)between(&seed, 900, 3000) : 0);
        unsigned every = 2 + (unsigned)below(&seed, 600);
        int most = one_in(&seed, 2);
        for (size_t i = 0; i < count; i++) {
            if ((i % every == 0) != most) dense_free(&all[i], number);
            else if (one_in(&seed, 50)) dense_resize(&all[i], between(&seed, range[0], 2 * range[1]), number);
            if (i % 256 == 0 || range[1] > 1 << 20) progress(slot);
        }
        rest(slot, (long)below(&seed, 900));
        for (size_t i = 0; i < count; i++) {
            if (all[i].block) dense_free(&all[i], number);
            if (i % 256 == 0 || range[1] > 1 << 20) progress(slot);
        }
        rest(slot, (long)below(&seed, 700));
    }
    if (all != MAP_FAILED) munmap(all, table);
    progress_end(slot);
    return unused;
}

/* ---- ranges: memory in pages of a chosen size, through the C calls */

struct far {
    size_t done, ends_at;
    int slot;
};
static int is_far(size_t done, size_t total, void *context) {
    struct far *far = context;
    if (done > total) fail("prefault: %zu of %zu bytes are done", done, total);
    far->done = done;
    progress(far->slot);
    /* A callback may allocate. */
    free(malloc(done % 4096 + 1));
    return far->ends_at && done >= far->ends_at;
}

static void prefault_range(struct neap_range *r, uint64_t *seed, int slot) {
    struct far far = {0, one_in(seed, 3) ? 1 + below(seed, r->bytes) : 0, slot};
    struct neap_prefault_options how = {.size = sizeof how, .access = below(seed, 2), .progress = is_far, .context = &far};
    how.threads = one_in(seed, 3) ? NEAP_ALL_PROCESSORS : (uint32_t)below(seed, 9);
    int result = neap_prefault(r->start, r->bytes, &how);
    if (how.done > r->bytes) fail("prefault: %zu of %zu bytes are resident", how.done, r->bytes);
    if (result == NEAP_OK && how.done != r->bytes) fail("prefault is done with %zu of %zu bytes", how.done, r->bytes);
    if (result == NEAP_INACCESSIBLE && !may_refuse()) fail("prefault: a whole range is not accessible");
    if (result && result != NEAP_CANCELLED && !may_refuse()) fail("prefault: %s", neap_result_text(result));
}

static void advise_range(struct neap_range *r, uint64_t *seed, uint64_t number) {
    uint32_t advice = (uint32_t)between(seed, NEAP_ADVICE_HUGE, NEAP_ADVICE_FREE);
    size_t from = below(seed, r->bytes / 8) * 8, bytes = below(seed, r->bytes - from + 1) / 8 * 8;
    char *at = (char *)r->start + from;
    int result = neap_advise(at, bytes, advice);
    if (advice != NEAP_ADVICE_FREE || result) {
        /* Failed advice may have freed a part. */
        if (advice != NEAP_ADVICE_FREE) check_words("an advised range", r->start, r->start, r->bytes, number);
    } else if (r->kind == NEAP_PAGES_SMALL) {
        for (size_t i = 0; i < r->bytes / 8; i++) {
            uint64_t *word = (uint64_t *)r->start + i;
            if (*word != word_of(word, number) && *word) fail("WRONG BYTES in a range of which a part was freed");
        }
    }
    fill_words(r->start, r->bytes, number);
}

static void look_at_range(struct neap_range *r) {
    struct neap_resident seen = {.size = sizeof seen};
    int result = neap_resident_get(r->start, r->bytes, &seen);
    if (result) {
        if (!may_refuse()) fail("resident: %s", neap_result_text(result));
        return;
    }
    if (seen.bytes != r->bytes || seen.resident > seen.bytes) fail("resident: %lu of %lu bytes", (unsigned long)seen.resident, (unsigned long)seen.bytes);
}

/* A private range is missing in the child; a shared one has the same bytes. */
static void fork_beside_range(struct neap_range *r, uint32_t flags, uint64_t number) {
    pid_t child = fork();
    if (child == 0) {
        if (flags & NEAP_SHARED) check_words("a shared range", r->start, r->start, r->bytes, number);
        free(malloc(100000));
        _exit(0);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (child > 0 && status) fail("a child beside a range ended with status %#x", status);
}

void *ranges(void *unused) {
    static const size_t pages[] = {0, 4096, 16384, 65536, 2 << 20, 2 << 20, 1 << 30};
    uint64_t seed = new_seed();
    int slot = progress_begin("ranges");
    for (; !atomic_load(&stop) && neap_range_alloc; progress(slot)) {
        struct neap_range r = {.size = sizeof r};
        size_t bytes = between(&seed, 1, one_in(&seed, 4) ? 48 << 20 : 3 << 20), page = pages[below(&seed, sizeof pages / sizeof *pages)];
        uint32_t flags = (uint32_t)below(&seed, 16);
        uint64_t number = new_seed();
        if (page < 65536) flags &= ~(uint32_t)NEAP_HUGETLB;
        /* Touched lazily: another process may have the last page. */
        if (page == 1 << 30) flags |= NEAP_LAZY;
        int result = neap_range_alloc(&r, bytes, page, flags);
        if (result) {
            if (r.start) fail("a range that is refused (%s) has an address", neap_result_text(result));
            if (!(flags & NEAP_STRICT) && !may_refuse()) fail("no range: %s", neap_result_text(result));
            continue;
        }
        if (r.bytes < bytes || r.bytes % r.page_size) fail("a range of %zu bytes has %zu", bytes, r.bytes);
        if (r.page_size > 2 << 20) {
            neap_range_free(&r);
            continue;
        }
        if (one_in(&seed, 2)) prefault_range(&r, &seed, slot);
        check_zero("a new range", r.start, r.bytes);
        fill_words(r.start, r.bytes, number);
        for (int i = 0; i < 3; i++, progress(slot))
            switch (below(&seed, 4)) {
            case 0: prefault_range(&r, &seed, slot); break;
            case 1: advise_range(&r, &seed, number); break;
            case 2: look_at_range(&r); break;
            default: if (!scarce_pool && one_in(&seed, 4)) fork_beside_range(&r, flags, number);
            }
        check_words("a range", r.start, r.start, r.bytes, number);
        neap_range_free(&r);
        if (r.start) fail("a range that was freed has an address");
    }
    progress_end(slot);
    return unused;
}

/* ---- profiles: samples are begun and ended, and profiles written to files that take them and to others */

static int takes(const void *bytes, size_t size, void *left) {
    volatile char last = ((const char *)bytes)[size - 1];
    (void)last;
    free(malloc(size));
    return (*(int *)left)-- == 0;
}

static void expect_one(const char *what, int result, uint64_t allowed) {
    /* Before the first sample, or where memory is refused. */
    allowed |= 1ull << NEAP_OK | 1ull << NEAP_NO_SAMPLES;
    if (may_refuse()) allowed |= 1ull << NEAP_NO_MEMORY | 1ull << NEAP_NOT_WRITTEN;
    if (result < 0 || result > 63 || !(allowed >> result & 1)) fail("%s: %s", what, neap_result_text(result));
}

static void write_profile(uint64_t *seed, const int files[4]) {
    int left = (int)below(seed, 40);
    uint32_t kind = (uint32_t)between(seed, NEAP_PROFILE_HEAP, NEAP_PROFILE_ALLOCS);
    switch (below(seed, 5)) {
    case 0: expect_one("a profile to /dev/null", neap_profile_write(files[0], kind), 0); break;
    case 1: expect_one("a profile to a full disk", neap_profile_write(files[1], kind), 1ull << NEAP_FULL); break;
    case 2: expect_one("a profile to no reader", neap_profile_write(files[2], kind), 1ull << NEAP_READER_GONE); break;
    case 3: expect_one("a profile to no file", neap_profile_write(files[3], kind), 1ull << NEAP_NOT_WRITTEN); break;
    default: expect_one("a profile passed on", neap_profile_pass(kind, takes, &left), 1ull << NEAP_NOT_WRITTEN);
    }
}

void *profiles(void *unused) {
    static const size_t intervals[] = {0, 4 << 10, 64 << 10, 512 << 10, 16 << 20};
    uint64_t seed = new_seed();
    int slot = progress_begin("profiles"), ends[2];
    if (!neap_profile_start || pipe(ends)) return unused;
    close(ends[0]);
    const int files[4] = {open("/dev/null", O_WRONLY), open("/dev/full", O_WRONLY), ends[1], 1000000};
    for (; !atomic_load(&stop); progress(slot)) {
        switch (below(&seed, 6)) {
        case 0: {
            int result = neap_profile_start(intervals[below(&seed, sizeof intervals / sizeof *intervals)]);
            if (result && !may_refuse()) fail("samples: %s", neap_result_text(result));
            break;
        }
        case 1: neap_profile_stop(); break;
        default: if (files[0] >= 0 && files[1] >= 0) write_profile(&seed, files);
        }
        steps(&seed, 20);
        nap_us((long)below(&seed, 5000));
    }
    neap_profile_stop();
    progress_end(slot);
    return unused;
}
