/* neap: a drop-in malloc for Linux.
 *
 * The malloc family needs no header of neap's: link with -lneap (or preload libneap.so) and use <stdlib.h>,
 * <malloc.h> (with mallopt, malloc_trim, mallinfo2, malloc_info, malloc_stats) and C++'s operators new and delete. Here
 * is what neap adds.
 *
 * All functions may be called from any thread, and none sets errno. malloc, free and their kin may be called from signal
 * handlers, whatever they interrupt. The functions here are not meant for that, but for neap_version and
 * neap_result_text; in a handler that interrupted malloc or free they wait for nobody: figures are 0, and nothing goes
 * back to the system.
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
    NEAP_NO_MEMORY = 5
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
 * A hook is told of some blocks, chosen so that they stand for all: each byte that a thread asks for starts a sample with
 * the same chance, one in `interval` (a Poisson process). A block of `s` bytes is a sample with the probability
 * p = 1 - exp(-s / interval), and its weight is s / p: the sum of weights is the bytes that were asked for, in the mean,
 * and weight / requested is the number of blocks that it stands for. When a sample is freed, the hook is told again; a
 * profile of what is live takes the first event out then. realloc of a sample to another size is a new block and the end
 * of the old one.
 *
 * The hook runs in the thread that allocates or frees, outside of all locks of neap's. It may allocate and free; what it
 * allocates is not sampled, and of samples that are freed in a hook no hook is told. It must not throw, and must not take
 * a lock that the program holds while it allocates. errno is kept for it.
 *
 * Cost: without a hook none. With one each malloc takes its slow path (some 120 instructions more); free keeps its fast
 * one. A sample has an OS page of its own while it lives, and 64 KiB of addresses. Blocks beyond 62 GiB, and those of threads
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

/* From now on `hook` is told of samples that are `interval` bytes apart in the mean (0 counts as 1: every block). It
 * takes the place of the one before; NULL ends sampling. A thread that is in a call at that moment follows soon after,
 * and may still call the old hook. */
int neap_sample(neap_hook hook, void *context, size_t interval);

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
