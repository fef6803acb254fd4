/* neap: a drop-in malloc for Linux.
 *
 * The malloc family does not need this header: link with -lneap (or preload libneap.so) and use <stdlib.h>, <malloc.h>
 * (with mallopt, malloc_trim, mallinfo2, malloc_info, malloc_stats) and C++'s operators new and delete. This header
 * declares what neap adds.
 *
 * All functions may be called from any thread, and none sets errno. malloc, free and related functions may be called
 * from signal handlers, whatever they interrupt. Except neap_version, neap_result_text and neap_profile_write, the
 * functions here are not meant for handlers. In a handler that interrupted malloc or free they wait for no other
 * thread: figures are 0, and nothing goes back to the system.
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

/* Results of functions that return an int. */
enum neap_result {
    NEAP_OK = 0,
    NEAP_UNKNOWN = 1,    /* there is no such option */
    NEAP_BAD_VALUE = 2,  /* this value is not accepted */
    NEAP_START_ONLY = 3, /* the option can be set only when the program starts, by its environment variable */
    NEAP_TOO_SHORT = 4,  /* the buffer is too short; only an empty string was written */
    NEAP_NO_MEMORY = 5,
    /* Of ranges: */
    NEAP_POOL_SHORT = 6,    /* the pool of hugetlb pages of this size has too few free pages */
    NEAP_NO_SUCH_PAGES = 7, /* this kernel has no pages of this size */
    NEAP_HUGE_OFF = 8,      /* transparent huge pages of this size are switched off, for the machine or the process */
    NEAP_NOT_HUGE = 9,      /* the kernel has no contiguous memory for pages of this size now */
    NEAP_NOT_ALLOWED = 10,  /* the user has no right to do this */
    NEAP_NO_MOUNT = 11,     /* no hugetlbfs with pages of this size is mounted */
    NEAP_INACCESSIBLE = 12, /* a part is not mapped, does not permit this access, or is beyond the end of its file */
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
    NEAP_NOT_WRITTEN = 23  /* the profile was written only in part: the callback ended it, or the file is not open,
                              not open for writing, or would have to wait (O_NONBLOCK) */
};

/* A result in words: a string that lives for ever. */
const char *neap_result_text(int result);

/* ---- Options ------------------------------------------------------------------------------------------------------
 *
 * `neap options` and docs/options.md list them. Values are text, as in the environment ("decay", "64M", "2s").
 */

/* Writes the value in force into `size` bytes at `value`. 64 bytes are enough, except for options with paths
 * (`counters`, `sites`, `profile`, `prefault`, `stats`). */
int neap_option_get(const char *option, char *value, size_t size);

/* Writes where the value comes from: "default", "environment", "neap run --set", "glibc's environment",
 * "GLIBC_TUNABLES", "mallopt" or "the program". 32 bytes are enough. */
int neap_option_origin(const char *option, char *origin, size_t size);

/* Sets an option. The new value also applies to memory that already waits to go back. */
int neap_option_set(const char *option, const char *value);

/* ---- Figures ----------------------------------------------------------------------------------------------------- */

/* How much memory is where: bytes, unless the name says otherwise. Newer versions add fields at the end. */
struct neap_stats {
    size_t size;      /* in: bytes of the structure, as the caller knows it; out: bytes that were filled in */
    uint64_t version; /* 1 */
    uint64_t live_blocks;     /* blocks that the program holds, and their usable bytes */
    uint64_t live_bytes;
    uint64_t cached_blocks;   /* free blocks in the caches of threads */
    uint64_t cached_bytes;
    uint64_t dirty_bytes;     /* free, waits to go back to the system */
    uint64_t lazy_bytes;      /* free, the system may take it at any time (purge=lazy), or refused to take it */
    uint64_t clean_bytes;     /* free, holds no memory: addresses only */
    uint64_t slab_bytes;      /* chunks of small blocks */
    uint64_t slab_free_bytes; /* the part of them that is neither live nor cached; some of it holds no memory */
    uint64_t large_blocks;    /* among the live ones: whole OS pages from an arena */
    uint64_t large_bytes;
    uint64_t huge_blocks;     /* among the live ones: mappings of their own */
    uint64_t huge_bytes;
    uint64_t heaps;           /* the greatest number of threads that allocated at one time */
    uint64_t purged_bytes;    /* address space given back, since the process began or was forked */
    uint64_t cleared_bytes;   /* what calloc cleared, and what it did not have to */
    uint64_t skipped_bytes;
    uint64_t memory_limit;    /* as last read; 0: none, or not read yet */
    uint64_t memory_used;
    uint64_t peak_bytes;      /* most bytes of arenas in use or dirty at one time */
};

/* Fills in the current figures: exact if no other thread allocates or frees meanwhile. Allocates nothing, and takes
 * some 100 ns for each heap. Set `stats->size` before: `struct neap_stats s = {.size = sizeof s};`. */
int neap_stats_get(struct neap_stats *stats);

/* Returns how much memory the system holds for neap, resident or swapped out: OS pages of blocks, of free memory that
 * waits, and of tables. neap asks the kernel, so this is exact if no other thread runs. If the kernel cannot tell
 * (without /proc, or under a seccomp filter that the program has set), neap adds up its own records: OS pages of small
 * blocks that were handed out and did not go back, large blocks, and free memory that waits. */
size_t neap_held(void);

/* ---- Giving memory back ------------------------------------------------------------------------------------------ */

/* Gives free memory back to the system now: the caches of all threads, free ranges except `keep` bytes, and the free OS
 * pages among small blocks. Ends after about `microseconds` (0: when it is done); it checks the time after each heap
 * and each batch of at most 4 MiB. Other threads wait no longer than one of those takes. Returns how many of the bytes
 * held memory. */
size_t neap_trim(size_t keep, uint64_t microseconds);

/* As neap_trim(0, 0), but returns the bytes of address space given back, whether they held memory or not. */
size_t neap_purge(void);

/* Says that the calling thread will be idle: its caches now serve other threads, or go back to the system as the
 * options say. */
void neap_thread_idle(void);

/* ---- Samples ------------------------------------------------------------------------------------------------------
 *
 * neap calls a hook for some blocks, chosen so that they stand for all: each byte that a thread requests starts a
 * sample with the same chance, one in `interval` (a Poisson process). A block of `s` bytes is a sample with the
 * probability p = 1 - exp(-s / interval), 1 if the interval is 1, and its weight is s / p. So the sum of weights is on
 * average the number of requested bytes, and weight / requested is the number of blocks for which the sample stands.
 * When a sample is freed, neap calls the hook again; a profile of live blocks then removes the first event. realloc of
 * a sample to another size is the end of the old block and a new block.
 *
 * The hook runs in the thread that allocates or frees, outside of all locks of neap. It may allocate and free. What it
 * allocates is not sampled, and no hook is called for samples that are freed in a hook. It must not throw, and must not
 * take a lock that the program holds while it allocates. neap restores errno after it.
 *
 * Cost: none without a hook. With a hook each malloc takes its slow path (see docs/controls.md); free keeps its fast
 * path. While it lives, a sample has its own OS page and 64 KiB of addresses, unless it is guarded. Blocks beyond 62
 * GiB, and blocks of threads that are about to end, are never samples. Nor are blocks of a signal handler that
 * interrupted malloc or free; if such a handler frees a sample, the hook is not called.
 */
enum neap_event { NEAP_ALLOCATED = 1, NEAP_FREED = 2 };

struct neap_sample {
    size_t size;       /* bytes of this structure: newer versions add fields at the end */
    uint32_t event;    /* enum neap_event */
    uint32_t reserved; /* 0 */
    void *block;       /* live from the first event until the second one returns */
    size_t requested;  /* requested bytes; 0 when it is freed */
    size_t usable;     /* usable bytes */
    uint64_t weight;   /* bytes that it stands for; 0 when it is freed */
};

typedef void (*neap_hook)(const struct neap_sample *sample, void *context);

/* From now on neap calls `hook` for samples that are `interval` bytes apart on average (0 counts as 1: every
 * block). It replaces the hook before; NULL ends sampling. A thread that is in a call at that moment follows soon
 * after, and may still call the old hook. */
int neap_sample(neap_hook hook, void *context, size_t interval);

/* ---- Profiles -----------------------------------------------------------------------------------------------------
 *
 * A profile says which code holds memory, and which code allocates. neap keeps samples, chosen as above, with the
 * stacks that allocated them. For each stack a profile has the blocks and bytes that were allocated since samples are
 * kept, and those that are live; each sample counts by its weight. `neap profile` does the same from outside
 * (docs/profile.md has costs, limits and errors); both may be used at the same time.
 *
 * docs/examples/profile.c is an example.
 */

/* Begins to keep samples that are `interval` bytes apart on average; 0: the default of 512 KiB; 1: each block (slower).
 * Blocks that were allocated before are in no profile. If samples are kept already (NEAP_PROFILE, neap profile --pid),
 * only the interval changes. NEAP_NO_MEMORY: there is no memory (5 MiB; 35 MiB with an interval of 1) or no file for
 * the samples. Not for signal handlers. The child of a fork starts without samples and keeps its own. */
int neap_profile_start(size_t interval);

/* Stops keeping samples. Samples so far stay in profiles, and neap still records when they are freed;
 * neap_profile_start continues. (It does not record frees of blocks that were kept with an interval of 1: they count as
 * freed when samples are kept again.) */
void neap_profile_stop(void);

/* Which values a profile shows first; all four are in each. */
enum neap_profile {
    NEAP_PROFILE_HEAP = 1,  /* inuse_space, as /debug/pprof/heap */
    NEAP_PROFILE_ALLOCS = 2 /* alloc_space, as /debug/pprof/allocs */
};

/* Writes a profile to an open file, a pipe or a socket, in the format of `go tool pprof` and other readers of
 * profile.proto (without compression, with mappings and build ids instead of names of functions). Any thread may call
 * it, also in a signal handler. It allocates no block, takes no lock, and waits only where write waits. If the reader
 * has gone away, the result is NEAP_READER_GONE, without SIGPIPE; at a limit of file sizes it is NEAP_FULL, without
 * SIGXFSZ. Then a part may be written. NEAP_BAD_VALUE: there is no such kind. */
int neap_profile_write(int file, uint32_t kind);

/* Passes a profile to `take` in this thread, in pieces of at most some KiB. If `take` returns another number than 0,
 * the call ends with NEAP_NOT_WRITTEN. `take` may allocate; it must not throw. */
int neap_profile_pass(uint32_t kind, int (*take)(const void *bytes, size_t size, void *context), void *context);

/* ---- Ranges in pages of a chosen size ------------------------------------------------------------------------------
 *
 * A range is a separate mapping, not a block of malloc: only neap_range_free frees it. docs/ranges.md says more. These
 * functions read files of /proc and /sys, if there are any; they may be slow, and are not for signal handlers.
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
    size_t bytes;        /* whole pages: at least the requested bytes */
    size_t page_size;    /* of its pages; transparent ones may be larger */
    uint32_t kind;       /* enum neap_pages */
    int32_t why_smaller; /* NEAP_OK, or why it has smaller pages than requested. NEAP_NOT_KNOWN: it may have them */
    uint32_t is_new;     /* of neap_range_open: 1 if this process made the file */
    int32_t segment;     /* of neap_range_segment: the number by which others attach it; else -1 */
    int32_t file;        /* of neap_range_open: the file, which stays open; else -1 */
    char path[256];      /* its path; else empty */
};

enum neap_range_flags {
    NEAP_HUGETLB = 1, /* pages from a pool, not transparent ones */
    NEAP_STRICT = 2,  /* an error instead of other pages. Transparent ones are populated at once, and checked */
    NEAP_LAZY = 4,    /* pages of a pool are only reserved, and populated when they are touched or prefaulted. Without
                         this they are populated at once: if a cgroup's limit or a memory policy forbids them, the
                         result is NEAP_LIMIT, where a later touch would be SIGBUS */
    NEAP_SHARED = 8   /* shared with children that are forked later. Without this they do not have the range */
};

/* Allocates a range of at least `bytes`, all 0, in pages of `page_size` bytes: 0 (or an OS page's size) for OS pages
 * and no larger ones, 65536 or 2 << 20, with NEAP_HUGETLB also 1 << 30, or other sizes of the kernel. If the kernel
 * cannot give such pages, the range gets the next smaller ones, down to OS pages, and `why_smaller` says why; with
 * NEAP_STRICT the call fails. On failure `range->start` is NULL, unless the structure ends before it by its size. Set
 * `range->size` before. */
int neap_range_alloc(struct neap_range *range, size_t bytes, size_t page_size, uint32_t flags);

/* A range of at least `bytes`, all 0, in a file of hugetlbfs that processes of this user share by its name (at most 100
 * bytes, without a slash). The first process makes the file in the first mount with pages of `page_size` bytes where it
 * may write; the others get the same file; the last process that frees its range removes it. If a crash left a file,
 * the next process that opens the name removes it. If `bytes` is 0, the result is NEAP_NOT_FOUND unless another process
 * has the file. For another length it is NEAP_MISMATCH. Such a range never gets smaller pages. `flags`: 0 or NEAP_LAZY.
 * A child of a fork that goes on using the range must open it itself. */
int neap_range_open(struct neap_range *range, const char *name, size_t bytes, size_t page_size, uint32_t flags);

/* A range of at least `bytes`, all 0, in a SysV segment in pages of a pool (SHM_HUGETLB; needs CAP_IPC_LOCK or the
 * group of /proc/sys/vm/hugetlb_shm_group). It is marked for removal at once, so it disappears with the last process
 * that has it, however that ends; until then other processes of this user can attach it by `range->segment`. */
int neap_range_segment(struct neap_range *range, size_t bytes, size_t page_size, uint32_t flags);
int neap_range_attach(struct neap_range *range, int segment);

/* Removes files of neap_range_open that crashed processes left, in all mounts, as far as this process may. Returns
 * their number. */
size_t neap_range_sweep(void);

/* Writes the path of the first mount of hugetlbfs with pages of `page_size` bytes where this process may make files
 * into `size` bytes at `path`; 256 are enough. NEAP_NO_MOUNT: there is none; NEAP_NOT_ALLOWED: all are read-only or
 * forbidden. */
int neap_hugetlb_mount(size_t page_size, char *path, size_t size);

/* Frees a range, and clears the structure. Does nothing for a structure without a range. The child of a fork must not
 * call it for a private range of its parent: another mapping of the child may be at these addresses. */
void neap_range_free(struct neap_range *range);

enum neap_advice {
    NEAP_ADVICE_HUGE = 1,     /* transparent huge pages from the next fault on, where settings allow them */
    NEAP_ADVICE_NO_HUGE = 2,  /* OS pages from the next fault on */
    NEAP_ADVICE_COLLAPSE = 3, /* puts resident memory into huge pages now (Linux 6.1) */
    NEAP_ADVICE_COLD = 4,     /* not needed soon: the kernel takes it first when memory is short */
    NEAP_ADVICE_PAGE_OUT = 5, /* not needed for long: goes to swap or its file now */
    NEAP_ADVICE_FREE = 6      /* not needed any more: memory goes back. Private memory reads as 0 afterwards, a file as
                                 the file; shared memory keeps its contents */
};

/* Advises the OS pages that are completely in the given addresses. They may be any memory of the program. */
int neap_advise(void *start, size_t bytes, uint32_t advice);

enum neap_access { NEAP_WRITE = 0, NEAP_READ = 1 };

#define NEAP_ALL_PROCESSORS 0xFFFFFFFFu

/* How a range is prefaulted. Fields that are 0 have their defaults. Newer versions add fields at the end. */
struct neap_prefault_options {
    size_t size;      /* in: bytes of the structure */
    uint32_t access;  /* enum neap_access. For reading, private memory that was never written gets no memory */
    uint32_t threads; /* number of threads, including the calling one; NEAP_ALL_PROCESSORS: as many as are useful */
    /* Called by the calling thread after each of its pieces of some MiB, and at the end. Another result than 0 ends the
     * prefault with NEAP_CANCELLED. It must not throw or jump out. The thread cannot be cancelled meanwhile. */
    int (*progress)(size_t done, size_t total, void *context);
    void *context;
    size_t done;      /* out: bytes that are resident for certain */
};

/* Makes all OS pages resident that overlap the given addresses; `options` may be NULL. Contents do not change, whatever
 * other threads do there. If the kernel cannot make a page resident, the call returns an error (NEAP_INACCESSIBLE,
 * NEAP_NO_MEMORY, NEAP_POISONED); there is no signal. The other threads are ordinary threads with all signals blocked,
 * which have ended when this returns. */
int neap_prefault(const void *start, size_t bytes, struct neap_prefault_options *options);

enum neap_source {
    NEAP_SOURCE_SCAN = 1,    /* PAGEMAP_SCAN (Linux 6.7) */
    NEAP_SOURCE_ENTRIES = 2, /* /proc/self/pagemap, and smaps for huge entries: of whole mappings only */
    NEAP_SOURCE_MINCORE = 3  /* resident or not: there is no /proc */
};

/* What the given addresses hold, in bytes. Newer versions add fields at the end. */
struct neap_resident {
    size_t size;           /* in: bytes of the structure, as the caller knows it; out: bytes that were filled in */
    uint32_t source;       /* enum neap_source */
    uint32_t folios_known; /* 1: sizes between an OS page and a huge page are known, which needs CAP_SYS_ADMIN. 0: they
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

/* Asks the kernel what the given addresses hold. Set `out->size` before. */
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
