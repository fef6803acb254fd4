/* What every workload shares: arguments, a deterministic random generator, threads, the checksum.
 *
 * A workload is called as   PROGRAM [--threads N] [--scale PERCENT | --quick]
 * and prints one line,      checksum HEX
 * which depends on the arguments only: never on addresses, on the order of threads, or on the
 * allocator. A different checksum under some allocator means that a block was overwritten.
 *
 * Each thread does the whole amount of work, so two threads do twice the work of one.
 *
 * The line "bench: threads=..." in a workload's head comment tells the lab which
 * thread counts make sense.
 */
#ifndef NEAP_LAB_COMMON_H
#define NEAP_LAB_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 64

static unsigned option_threads = 1;
static unsigned option_scale = 100;

/* The amount of work `full` at the scale asked for, at least 1. */
static inline size_t scaled(size_t full) {
  size_t part = full * option_scale / 100;
  return part ? part : 1;
}

/* splitmix64: one state word, any seed. */
typedef struct {
  uint64_t state;
} rng_t;

static inline uint64_t rng_next(rng_t *rng) {
  uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Uniform in [0, bound). */
static inline uint64_t rng_below(rng_t *rng, uint64_t bound) {
  return (uint64_t)(((unsigned __int128)rng_next(rng) * bound) >> 64);
}

/* Uniform in [low, high]. */
static inline size_t rng_range(rng_t *rng, size_t low, size_t high) {
  return low + (size_t)rng_below(rng, high - low + 1);
}

/* Log-uniform in [1 << low, 1 << high): each power of two as likely as any other. */
static inline size_t rng_log(rng_t *rng, unsigned low, unsigned high) {
  size_t base = (size_t)1 << rng_range(rng, low, high - 1);
  return base + (size_t)rng_below(rng, base);
}

static inline rng_t rng_for(unsigned thread) {
  rng_t rng = {0x6e656170u + (uint64_t)thread * 0x100000001b3u};
  return rng;
}

/* malloc that ends the program on failure: a workload never runs on a part of its data. */
static inline void *need(void *p) {
  if (p == NULL) {
    fputs("out of memory\n", stderr);
    exit(3);
  }
  return p;
}

/* Writes a mark at both ends of a block and in each 4 KiB of it, and reads it back. */
static inline void mark_block(void *block, size_t size, uint8_t mark) {
  uint8_t *bytes = (uint8_t *)block;
  for (size_t at = 0; at < size; at += 4096) bytes[at] = mark;
  bytes[size - 1] = mark;
}

static inline uint64_t read_block(const void *block, size_t size) {
  const uint8_t *bytes = (const uint8_t *)block;
  uint64_t sum = bytes[size - 1];
  for (size_t at = 0; at < size; at += 4096) sum += bytes[at];
  return sum;
}

static inline void parse_options(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--quick") == 0) {
      option_scale = 10;
    } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      option_threads = (unsigned)strtoul(argv[++i], NULL, 10);
    } else if (strcmp(argv[i], "--scale") == 0 && i + 1 < argc) {
      option_scale = (unsigned)strtoul(argv[++i], NULL, 10);
    } else {
      fprintf(stderr, "usage: %s [--threads N] [--scale PERCENT | --quick]\n", argv[0]);
      exit(2);
    }
  }
  if (option_threads < 1 || option_threads > MAX_THREADS || option_scale < 1) {
    fprintf(stderr, "%s: threads must be 1 to %d, the scale at least 1\n", argv[0], MAX_THREADS);
    exit(2);
  }
}

static inline void print_checksum(uint64_t sum) {
  printf("checksum %016llx\n", (unsigned long long)sum);
}

/* One thread's part of the work: takes the thread's number, returns its share of the checksum. */
typedef uint64_t (*worker_t)(unsigned thread);

typedef struct {
  worker_t work;
  unsigned thread;
  uint64_t sum;
} worker_slot_t;

static inline void *worker_main(void *argument) {
  worker_slot_t *slot = (worker_slot_t *)argument;
  slot->sum = slot->work(slot->thread);
  return NULL;
}

static inline pthread_t start_thread(void *(*body)(void *), void *argument) {
  pthread_t id;
  if (pthread_create(&id, NULL, body, argument) != 0) {
    fputs("cannot create a thread\n", stderr);
    exit(3);
  }
  return id;
}

/* Runs `work` on option_threads threads (one of them the main thread) and adds up the results. */
static inline uint64_t run_threads(worker_t work) {
  worker_slot_t slots[MAX_THREADS];
  pthread_t ids[MAX_THREADS];
  for (unsigned t = 0; t < option_threads; t++) {
    slots[t].work = work;
    slots[t].thread = t;
    slots[t].sum = 0;
    if (t > 0) ids[t] = start_thread(worker_main, &slots[t]);
  }
  worker_main(&slots[0]);
  uint64_t sum = slots[0].sum;
  for (unsigned t = 1; t < option_threads; t++) {
    pthread_join(ids[t], NULL);
    sum += slots[t].sum;
  }
  return sum;
}

#endif
