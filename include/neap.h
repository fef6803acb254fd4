/* neap: a drop-in malloc for Linux.
 *
 * The malloc family needs no header of neap's: link with -lneap (or preload libneap.so) and use <stdlib.h>,
 * <malloc.h> (with mallopt, malloc_trim, mallinfo2, malloc_info, malloc_stats) and C++'s operators new and delete. Here
 * is what neap adds.
 *
 * All functions may be called from any thread, and none sets errno. malloc, free and their kin may be called from signal
 * handlers, whatever they interrupt. The functions here are not meant for that, but for neap_version and
 * neap_result_text; in a handler that interrupted malloc or free they wait for no other thread: figures are 0, and
 * nothing goes back to the system.
 */
#ifndef NEAP_H
#define NEAP_H

#include <stddef.h>
#include <stdint.h>

#define NEAP_VERSION_MAJOR 0
#define NEAP_VERSION_MINOR 1
#define NEAP_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is running, as "0.1.0": a string that lives for ever. */
const char *neap_version(void);

/* What functions that return an int return. */
enum neap_result {
    NEAP_OK = 0,
    NEAP_UNKNOWN = 1,    /* there is no such option */
    NEAP_BAD_VALUE = 2,  /* this value is not accepted */
    NEAP_START_ONLY = 3, /* the option can be set only when the program starts, by its environment variable */
    NEAP_TOO_SHORT = 4,  /* the buffer is too short; nothing was written but an empty string */
    NEAP_NO_MEMORY = 5,
    /* Of ranges: */
    NEAP_POOL_SHORT = 6,    /* the pool of hugetlb pages of this size has too few free pages */
    NEAP_NO_SUCH_PAGES = 7, /* this kernel has no pages of this size */
    NEAP_HUGE_OFF = 8,      /* transparent huge pages of this size are switched off, for the machine or the process */
    NEAP_NOT_HUGE = 9,      /* the kernel has no contiguous memory for pages of this size now */
    NEAP_NOT_ALLOWED = 10,  /* the user has no right to do this */
    NEAP_NO_MOUNT = 11,     /* no hugetlbfs with pages of this size is mounted */
    NEAP_INACCESSIBLE = 12, /* a part is not mapped, may not be accessed so, or lies behind the end of its file */
    NEAP_POISONED = 13,     /* the memory of a part of the range is damaged */
    NEAP_CANCELLED = 14,    /* the progress callback ended it */
    NEAP_UNSUPPORTED = 15,  /* this kernel has no such function, or a filter refuses it */
    NEAP_NOT_KNOWN = 16,    /* the kernel does not say whether it uses pages of this size (there is no /sys) */
    NEAP_LIMIT = 17,        /* a limit of the process or its cgroup, or a memory policy, forbids these pages */
    NEAP_NOT_FOUND = 18,    /* there is no such file or segment in use */
    NEAP_MISMATCH = 19,     /* it exists with another length or other pages */
    /* Of profiles: */
    NEAP_NO_SAMPLES = 20,  /* no samples were taken in this process */
    NEAP_FULL = 21,        /* the disk is full, or a limit of file sizes is reached */
    NEAP_READER_GONE = 22, /* the reader has gone away */
    NEAP_NOT_WRITTEN = 23  /* the profile was not taken as a whole: by the callback, or by a file that is not open, not to
                              write, or would have to wait (O_NONBLOCK) */
};

/* A result in words: a string that lives for ever. */
const char *neap_result_text(int result);

/* ---- Options ------------------------------------------------------------------------------------------------------
 *
 * `neap options` and docs/options.md list them. Values are text, as in the environment ("decay", "64M", "2s").
 */

/* Writes the value in force into `size` bytes at `value`. 64 bytes are enough, but for `counters` and `sites`, which are
 * paths. */
int neap_option_get(const char *option, char *value, size_t size);

/* Writes who chose it: "default", "environment", "neap run --set", "glibc's environment", "GLIBC_TUNABLES", "mallopt" or
 * "the program". 32 bytes are enough. */
int neap_option_origin(const char *option, char *origin, size_t size);

/* Sets an option. What waits to go back goes by the new value from now on. */
int neap_option_set(const char *option, const char *value);

/* ---- Figures ------------------------------------------------------------------------------------------------------ */

/* How much memory is where: bytes, unless the name says otherwise. Newer versions add fields at the end. */
struct neap_stats {
    size_t size;      /* in: bytes of the structure, as the caller knows it; out: bytes that were filled in */
    uint64_t version; /* 1 */
    uint64_t live_blocks;     /* blocks that the program holds, and their usable bytes */
    uint64_t live_bytes;
    uint64_t cached_blocks;   /* free blocks in the caches of threads */
    uint64_t cached_bytes;
    uint64_t dirty_bytes;     /* free, waits to go back to the system */
    uint64_t lazy_bytes;      /* free, the system takes it when it wants to (purge=lazy), or refused to */
    uint64_t clean_bytes;     /* free, holds no memory: addresses only */
    uint64_t slab_bytes;      /* chunks of small blocks */
    uint64_t slab_free_bytes; /* what of them is neither live nor cached; part of it holds no memory */
    uint64_t large_blocks;    /* among the live ones: whole OS pages from an arena */
    uint64_t large_bytes;
    uint64_t huge_blocks;     /* among the live ones: mappings of their own */
    uint64_t huge_bytes;
    uint64_t heaps;           /* as many as threads allocated at one time */
    uint64_t purged_bytes;    /* address space given back, since the process began or was forked */
    uint64_t cleared_bytes;   /* what calloc cleared, and what it did not have to */
    uint64_t skipped_bytes;
    uint64_t memory_limit;    /* as last looked at; 0: none was */
    uint64_t memory_used;
    uint64_t peak_bytes;      /* most bytes of arenas in use or dirty at one time */
};

/* Fills in the figures of now: exact where no other thread allocates or frees meanwhile. Allocates nothing; some 100 ns
 * for each heap. `stats->size` must be set before: `struct neap_stats s = {.size = sizeof s};`. */
int neap_stats_get(struct neap_stats *stats);

/* How much memory the system holds for neap: OS pages of blocks, of free memory that waits, and of tables, that are
 * resident or swapped out. The kernel is asked, so this is exact where no other thread runs. Where it cannot tell
 * (without /proc, under the program's own filter of system calls), neap's own books say: OS pages of small blocks that
 * were handed out and did not go back, large blocks, and free memory that waits. */
size_t neap_held(void);

/* ---- Giving memory back ------------------------------------------------------------------------------------------- */

/* Gives free memory back to the system now, but for `keep` bytes of free ranges: the caches of all threads, free ranges
 * and the free OS pages among small blocks. Ends after about `microseconds` (0: when it is done); it looks at the time
 * after each heap and each batch of at most 4 MiB. Other threads wait for no longer than one of those. Returns how many
 * of the bytes held memory. */
size_t neap_trim(size_t keep, uint64_t microseconds);

/* As neap_trim(0, 0), but returns the bytes of address space given back, whether memory lay there or not. */
size_t neap_purge(void);

/* The calling thread will be idle: what it keeps at hand for its next calls serves others from now on, or goes back to
 * the system as the options say. */
void neap_thread_idle(void);

/* ---- Samples ------------------------------------------------------------------------------------------------------
 *
 * A hook is called for some blocks, chosen so that they stand for all: each byte that a thread asks for starts a sample
 * with the same chance, one in `interval` (a Poisson process). A block of `s` bytes is a sample with the probability
 * p = 1 - exp(-s / interval), and its weight is s / p: the sum of weights is on average the bytes that were asked for,
 * and weight / requested is the number of blocks that it stands for. When a sample is freed, the hook is called again;
 * a profile of what is live takes the first event out then. realloc of a sample to another size is a new block and the end
 * of the old one.
 *
 * The hook runs in the thread that allocates or frees, outside of all locks of neap's. It may allocate and free; what it
 * allocates is not sampled, and for samples that are freed in a hook no hook is called. It must not throw, and must not
 * take a lock that the program holds while it allocates. errno is kept for it.
 *
 * Cost: without a hook none. With one each malloc takes its slow path (some 120 instructions more); free keeps its fast
 * one. A sample has an OS page of its own while it lives, and 64 KiB of addresses, unless it is guarded. Blocks beyond 62 GiB, and those of threads
 * that are about to end, are no samples. Nor are blocks of a signal handler that interrupted malloc or free; a sample that
 * such a handler frees ends without a word.
 */
enum neap_event { NEAP_ALLOCATED = 1, NEAP_FREED = 2 };

struct neap_sample {
    size_t size;       /* bytes of this structure: newer versions add fields at the end */
    uint32_t event;    /* enum neap_event */
    uint32_t reserved; /* 0 */
    void *block;       /* live from the first event until the second one returns */
    size_t requested;  /* bytes that were asked for; 0 when it is freed */
    size_t usable;     /* usable bytes */
    uint64_t weight;   /* bytes that it stands for; 0 when it is freed */
};

typedef void (*neap_hook)(const struct neap_sample *sample, void *context);

/* From now on `hook` is called for samples that are `interval` bytes apart on average (0 counts as 1: every block). It
 * takes the place of the one before; NULL ends sampling. A thread that is in a call at that moment follows soon after,
 * and may still call the old hook. */
int neap_sample(neap_hook hook, void *context, size_t interval);

/* ---- Profiles -----------------------------------------------------------------------------------------------------
 *
 * Which code holds memory, and which code allocates: neap keeps samples, chosen as above, with the stacks that allocated
 * them. A profile has for each stack the blocks and bytes that were allocated since samples are kept, and those that are
 * live, each sample counted by its weight. `neap profile` does the same from outside (docs/profile.md has costs, limits
 * and errors); both may be used at the same time.
 *
 * docs/examples/profile.c is an example.
 */

/* Begins to keep samples that are `interval` bytes apart on average; 0: the usual 512 KiB; 1: each block (slower).
 * Blocks that were allocated before are in no profile. If samples are kept already (NEAP_PROFILE, neap profile --pid), only the
 * distance changes. NEAP_NO_MEMORY: there is no memory (5 MiB; 36 MiB for each block) or no file for the samples. Not for
 * signal handlers. The child of a fork keeps samples of its own, from none on. */
int neap_profile_start(size_t interval);

/* Ends that. What was sampled stays in profiles, and the end of its life is noted. neap_profile_start goes on. (The end of
 * blocks that were kept with an interval of 1 is not noted: they count as freed when samples are kept again.) */
void neap_profile_stop(void);

/* Which values a profile shows first; all four are in each. */
enum neap_profile {
    NEAP_PROFILE_HEAP = 1,  /* inuse_space, as /debug/pprof/heap */
    NEAP_PROFILE_ALLOCS = 2 /* alloc_space, as /debug/pprof/allocs */
};

/* Writes a profile to an open file, a pipe or a socket, as `go tool pprof` and other readers of profile.proto take it
 * (without compression, with mappings and build ids instead of names of functions). May be called by any thread, also in
 * a signal handler. Takes no block of the heap and no lock, and waits only where write waits. A reader that has gone away
 * is NEAP_READER_GONE and no SIGPIPE, a limit of file sizes NEAP_FULL and no SIGXFSZ; then a part may be written.
 * NEAP_BAD_VALUE: there is no such kind. */
int neap_profile_write(int file, uint32_t kind);

/* Passes a profile to `take`, in pieces of some KiB at most, in this thread, until it returns another number than 0: then
 * the result is NEAP_NOT_WRITTEN. `take` may allocate; it must not throw. */
int neap_profile_pass(uint32_t kind, int (*take)(const void *bytes, size_t size, void *context), void *context);

/* ---- Ranges in pages of a chosen size ------------------------------------------------------------------------------
 *
 * A range is a mapping of its own, and no block of malloc's: it is freed by neap_range_free alone. docs/ranges.md says
 * more. These functions read files of /proc and /sys where there are any; they may be slow, and are not for signal
 * handlers.
 */

enum neap_pages {
    NEAP_PAGES_SMALL = 1,       /* OS pages */
    NEAP_PAGES_TRANSPARENT = 2, /* transparent huge pages, of 2 MiB or smaller ones (mTHP); the kernel may split them */
    NEAP_PAGES_HUGETLB = 3      /* pages from a pool of the machine */
};

/* A range. Newer versions add fields at the end. */
struct neap_range {
    size_t size;         /* in: bytes of the structure */
    void *start;         /* NULL: no range */
    size_t bytes;        /* whole pages: at least what was asked for */
    size_t page_size;    /* of the pages that it is made of; transparent ones may be larger */
    uint32_t kind;       /* enum neap_pages */
    int32_t why_smaller; /* NEAP_OK, or why it has smaller pages than were asked for. NEAP_NOT_KNOWN: it may have */
    uint32_t is_new;     /* of neap_range_open: 1 if this process made the file */
    int32_t segment;     /* of neap_range_segment: the number by which others attach it; else -1 */
    int32_t file;        /* of neap_range_open: the file, which stays open; else -1 */
    char path[256];      /* its path; else empty */
};

enum neap_range_flags {
    NEAP_HUGETLB = 1, /* pages from a pool, not transparent ones */
    NEAP_STRICT = 2,  /* no other pages: an error instead. Transparent ones are populated at once, and checked */
    NEAP_LAZY = 4,    /* pages of a pool are reserved, and come when they are touched or prefaulted. Without this they
                         are populated at once: what a cgroup's limit or a memory policy forbids is NEAP_LIMIT then, and
                         would be SIGBUS later */
    NEAP_SHARED = 8   /* shared with children that are forked later. Without this they do not have the range */
};

/* Allocates a range of at least `bytes`, all 0, in pages of `page_size` bytes: 0 (or an OS page's size) for OS pages and
 * no larger ones, 65536 or 2 << 20, with NEAP_HUGETLB also 1 << 30, or what else the kernel has. Where it has no such
 * pages to give, the range gets the next smaller ones, down to OS pages, and `why_smaller` says why; not so with
 * NEAP_STRICT. On failure `range->start` is NULL. `range->size` must be set before. */
int neap_range_alloc(struct neap_range *range, size_t bytes, size_t page_size, uint32_t flags);

/* A range of at least `bytes`, all 0, in a file of hugetlbfs that processes of this user share by its name (at most 100
 * bytes, without a slash). The first process makes the file in the first mount with pages of `page_size` bytes where it
 * may; the others get the same one; the last that frees its range removes it. What a crash left is removed by the next
 * process that opens the name. `bytes` of 0: NEAP_NOT_FOUND unless another process has it. Another length is
 * NEAP_MISMATCH. There are no smaller pages in place of those. `flags`: 0 or NEAP_LAZY. A child of a fork that goes on
 * using it has to open it itself. */
int neap_range_open(struct neap_range *range, const char *name, size_t bytes, size_t page_size, uint32_t flags);

/* A range of at least `bytes`, all 0, in a SysV segment in pages of a pool (SHM_HUGETLB; this takes CAP_IPC_LOCK or the
 * group of /proc/sys/vm/hugetlb_shm_group). It is marked for removal at once, so it goes with the last process that has
 * it, however that ends; until then other processes of this user attach it by `range->segment`. */
int neap_range_segment(struct neap_range *range, size_t bytes, size_t page_size, uint32_t flags);
int neap_range_attach(struct neap_range *range, int segment);

/* Removes files of neap_range_open that crashed processes left, in all mounts, as far as this process may. Returns how
 * many. */
size_t neap_range_sweep(void);

/* Writes the path of the first mount of hugetlbfs with pages of `page_size` bytes where this process may make files into
 * `size` bytes at `path`; 256 are enough. NEAP_NO_MOUNT: there is none; NEAP_NOT_ALLOWED: all are read-only or
 * forbidden. */
int neap_hugetlb_mount(size_t page_size, char *path, size_t size);

/* Frees a range, and clears the structure. Does nothing for one without a range. Not for the child of a fork whose parent
 * has a private range: another mapping of the child may lie at its addresses. */
void neap_range_free(struct neap_range *range);

enum neap_advice {
    NEAP_ADVICE_HUGE = 1,     /* transparent huge pages from the next fault on, where settings allow them */
    NEAP_ADVICE_NO_HUGE = 2,  /* OS pages from the next fault on */
    NEAP_ADVICE_COLLAPSE = 3, /* makes huge pages of what is resident, now (Linux 6.1) */
    NEAP_ADVICE_COLD = 4,     /* not needed soon: the first to go where memory is short */
    NEAP_ADVICE_PAGE_OUT = 5, /* not needed for long: goes to swap or its file now */
    NEAP_ADVICE_FREE = 6      /* not needed any more: memory goes back. Private memory reads as 0 afterwards, a file as
                                 the file; shared memory keeps its contents */
};

/* Advises the OS pages that lie in a range as a whole. The range may be any that the program has. */
int neap_advise(void *start, size_t bytes, uint32_t advice);

enum neap_access { NEAP_WRITE = 0, NEAP_READ = 1 };

#define NEAP_ALL_PROCESSORS 0xFFFFFFFFu

/* How a range is prefaulted. Fields that are 0 have their defaults. Newer versions add fields at the end. */
struct neap_prefault_options {
    size_t size;      /* in: bytes of the structure */
    uint32_t access;  /* enum neap_access. For reading, private memory that was never written gets no memory */
    uint32_t threads; /* how many work, the calling one included; NEAP_ALL_PROCESSORS: as many as are of use */
    /* Called by the calling thread after each of its pieces of some MiB, and at the end. Another result than 0 ends the
     * prefault with NEAP_CANCELLED. It must not throw or jump out. The thread cannot be cancelled meanwhile. */
    int (*progress)(size_t done, size_t total, void *context);
    void *context;
    size_t done;      /* out: bytes that are resident for certain */
};

/* Makes the OS pages resident that have a part of the range; `options` may be NULL. Contents stay as they are, whatever
 * other threads do there. What the kernel cannot make resident is a result (NEAP_INACCESSIBLE, NEAP_NO_MEMORY,
 * NEAP_POISONED) and no signal. The other threads are ordinary ones with all signals blocked, which have ended when
 * this returns. */
int neap_prefault(const void *start, size_t bytes, struct neap_prefault_options *options);

enum neap_source {
    NEAP_SOURCE_SCAN = 1,    /* PAGEMAP_SCAN (Linux 6.7) */
    NEAP_SOURCE_ENTRIES = 2, /* /proc/self/pagemap, and smaps for huge entries: of whole mappings only */
    NEAP_SOURCE_MINCORE = 3  /* resident or not: there is no /proc */
};

/* What a range holds, in bytes. Newer versions add fields at the end. */
struct neap_resident {
    size_t size;           /* in: bytes of the structure, as the caller knows it; out: bytes that were filled in */
    uint32_t source;       /* enum neap_source */
    uint32_t folios_known; /* 1: sizes between an OS page and a huge page are known, which takes CAP_SYS_ADMIN. 0: they
                              count as OS pages */
    uint64_t bytes;        /* of the range, in whole OS pages */
    uint64_t resident;
    uint64_t swapped;
    uint64_t zero;         /* mapped to the shared page of zeros: no memory */
    uint64_t huge;         /* of `resident`: mapped by entries of a huge page or more, one entry of the TLB for each */
    uint64_t hugetlb;      /* of `resident`: from pools */
    uint64_t by_order[24]; /* `resident` by contiguous pages: [0] OS pages, [4] 16 of them, [9] 2 MiB, [18] 1 GiB where
                              an OS page has 4 KiB */
};

/* Asks the kernel what a range holds. `out->size` must be set before. */
int neap_resident_get(const void *start, size_t bytes, struct neap_resident *out);

/* ---- */

/* C23, which C libraries may not declare yet: free for a block whose size (and alignment) the program knows. */
#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 202311L
#if !defined(__cplusplus)
#define NEAP_NOTHROW
#elif __cplusplus >= 201103L
#define NEAP_NOTHROW noexcept
#else
#define NEAP_NOTHROW throw()
#endif
void free_sized(void *block, size_t size) NEAP_NOTHROW;
void free_aligned_sized(void *block, size_t alignment, size_t size) NEAP_NOTHROW;
#undef NEAP_NOTHROW
#endif

#ifdef __cplusplus
}
#endif

#endif
