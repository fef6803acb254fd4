/* A program that tortures its allocator. A run is made of actors: threads that each do one kind of thing in a loop, on
   one table of blocks. Every block's bytes follow from its number. They are checked when it is freed, resized, chosen
   for a check, inherited by a child, and at the end.

   All choices come from random numbers with one seed. The order in which threads run is the system's. */
#ifndef NEAP_TORTURE_H
#define NEAP_TORTURE_H

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

/* Ends the process at once with a line on standard error. Takes no lock and no memory, which may be what failed. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The generator xorshift64*. */
static inline uint64_t draw(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (x * 0x2545F4914F6CDD1Dull) >> 8;
}
static inline uint64_t below(uint64_t *state, uint64_t n) { return draw(state) % n; }
static inline int one_in(uint64_t *state, uint64_t n) { return below(state, n) == 0; }
static inline size_t between(uint64_t *state, size_t low, size_t high) { return low + below(state, high - low + 1); }

static inline long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static inline void nap_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* ---- The run (main.c) */

/* Whether actors shall end, and whether they shall rest. */
extern atomic_int stop, resting;
/* Why blocks may stay with the process after all were freed, so that RSS says nothing. */
extern atomic_int keeps_memory;
/* Whether system calls fail: a guard page may be missing, a thread may not start. */
extern int calls_fail;
/* Whether they fail or are late. */
extern int calls_late;
/* Blocks are in pages of a pool that is taken away: the child of a fork may lose them. */
extern int scarce_pool;
/* A filter was put on: there is no helper. */
extern atomic_int filtered;
/* KiB up to which memory may wait, as an actor chose; 0 where none did. */
extern atomic_long threshold_kib;
/* /dev/null, opened before any filter comes. */
extern FILE *nowhere;
/* Set where the allocator is neap, which is compared with others. */
extern const char *neap_version(void) __attribute__((weak));
/* Where `fail` writes its line. */
extern int report_file;
/* No actor has blocks besides the table's, so that a child knows what it needs. */
extern int is_alone;
/* The kinds of sizes: see pick_size. */
extern int sizes;

/* A generator of its own for each caller. */
uint64_t new_seed(void);

/* Progress, for an observer: a slot in a shared file for each actor. A slot that does not change for long while its
   actor runs is a hang. */
int progress_begin(const char *name);
void progress(int slot);
void progress_end(int slot);

/* RSS in KiB, or 0 where it cannot be read. */
long resident(void);

/* Starts a thread with signals blocked or not, a stack of `stack` bytes (0: 256 KiB), detached or not; 0 if the system
   refuses. */
int start_thread(pthread_t *thread, void *(*body)(void *), void *arg, size_t stack, int detached, int signals);

/* Naps in steps, with progress, until the time is over or the run is. */
void rest(int slot, long ms);

/* ---- Blocks (blocks.c) */

/* SHARED slots belong to all actors, WAVES to one. */
enum { SHARED = 4096, WAVES = 2048, SLOTS = SHARED + WAVES };

/* Checks that all is as it was left: used in children of fork, and at the end. */
void check_all(const char *where);
/* One thing with one slot of [from, from + count): allocate, check, resize or free. */
void step(uint64_t *seed, unsigned from, unsigned count);
void steps(uint64_t *seed, int count);
/* Makes a block of `size` in a slot that is free, and frees the one in a slot that is not; 0 where the slot is busy or
   there is no memory. */
int make_block(uint64_t *seed, unsigned slot, size_t size);
int free_block(unsigned slot);
/* Frees all blocks, checked. */
void free_all(void);
/* Fails where harden=on and no guard lies behind a block of whole OS pages. */
void check_guard(unsigned char *block);
/* Takes a block of at least `size` bytes out of the table for a while; -1 where chance finds none. */
int borrow_block(uint64_t *seed, size_t size, unsigned char **block, size_t *length);
void give_back(int slot);
/* As realloc, with all checks, for a block that was borrowed. */
void resize_borrowed(int slot, size_t size);
/* Bytes in blocks of the table, and the most that they may be. */
size_t live_bytes(void);
/* Of the cgroup, whose table of blocks comes to a sixth of it. */
size_t memory_limit(void);
enum { MOST_LIVE = 96 << 20 };

/* ---- Actors */

struct actor {
    const char *name;
    void *(*body)(void *);
    int signals;
};
void *worker(void *unused);
void *waves(void *unused);
void cancel_once(void);
void *lives(void *unused);
void *holes(void *unused);
void *small_stacks(void *unused);
void *options(void *unused);
void *forks(void *unused);
void *quick_forks(void *unused);
void *growth(void *unused);
void *handlers(void *unused);
void *vforks(void *unused);
void *trims(void *unused);
void *limits(void *unused);
void *mappings(void *unused);
void *advice(void *unused);
void *filters(void *unused);
void *sandbox(void *unused);
void *garbage(void *unused);
void *crowd(void *unused);
void *libraries(void *unused);
void *rests(void *unused);
void *dense(void *unused);
void *ranges(void *unused);
void *profiles(void *unused);
void *changes(void *unused);
/* Permits the actor `changes` one of its changes; 0 where there is none of this name. */
int permit_change(const char *name);
void start_signals(uint64_t *seed);

/* Whether this thread is in a handler; whether a handler may fork in this thread: it is in no call of the C library
   that takes locks. */
extern __thread int in_handler __attribute__((tls_model("initial-exec")));
extern __thread int may_fork __attribute__((tls_model("initial-exec")));

#endif
