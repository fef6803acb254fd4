/* What every experiment shares: options, metrics, clocks, memory figures that do not allocate.
 *
 * An experiment is called as   PROGRAM [--NAME VALUE]...
 * and prints lines             metric NAME UNIT VALUE
 * It ends with status 0, 2 for wrong options, 3 when memory ran out, 4 when data was damaged, 5 when
 * the machine lacks what it needs: then its last words are the reason, and the lab shows it as skipped.
 *
 * The programs only call malloc's family and free, so LD_PRELOAD decides which allocator is
 * measured. Their own tables come from mmap and are touched before the first figure is taken: what
 * grows after that is the allocator's.
 */
#ifndef NEAP_LAB_EXPERIMENT_H
#define NEAP_LAB_EXPERIMENT_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)
/* The step in which memory is touched: the smallest OS page there is. */
#define TOUCH_STEP ((size_t)4096)

/* One option: `--name value`. The value is a number, or the place of a word in `words`. */
typedef struct {
  const char *name;
  /* NULL for a number; "" for any text; else the words, separated by spaces. */
  const char *words;
  /* The default, replaced by what was given. */
  size_t value;
  /* The value as it was given; NULL without one. */
  const char *text;
} option_t;

static inline void usage(const char *program, const option_t *options, size_t count) {
  fprintf(stderr, "usage: %s", program);
  for (size_t i = 0; i < count; i++) {
    const char *words = options[i].words;
    fprintf(stderr, " [--%s %s]", options[i].name, words == NULL ? "N" : *words ? words : "TEXT");
  }
  fputc('\n', stderr);
  exit(2);
}

/* The place of `text` among `words`, or -1. */
static inline int word_index(const char *words, const char *text) {
  size_t length = strlen(text);
  for (int index = 0; *words; index++) {
    size_t here = strcspn(words, " ");
    if (here == length && memcmp(words, text, length) == 0) return index;
    words += here + strspn(words + here, " ");
  }
  return -1;
}

/* Reads `text` into `option`; 0 where it is not one of the option's values. */
static inline int set_option(option_t *option, const char *text) {
  option->text = text;
  if (option->words == NULL) {
    char *end;
    option->value = strtoull(text, &end, 10);
    return *text != '\0' && *end == '\0';
  }
  if (*option->words == '\0') return 1;
  int index = word_index(option->words, text);
  option->value = (size_t)index;
  return index >= 0;
}

static inline void parse_options(int argc, char **argv, option_t *options, size_t count) {
  for (int i = 1; i < argc; i += 2) {
    size_t which = 0;
    while (which < count && (argv[i][0] != '-' || strcmp(argv[i] + 2, options[which].name) != 0)) which++;
    if (which == count || i + 1 == argc || !set_option(&options[which], argv[i + 1])) {
      usage(argv[0], options, count);
    }
  }
  /* stdio would take its buffer from the allocator that is measured. */
  static char buffer[8192];
  setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
}

static inline void metric(const char *name, const char *unit, double value) {
  printf("metric %s %s %.6g\n", name, unit, value);
}

static inline void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(3);
}

/* Ends the program where the machine lacks what it needs. */
static inline void unable(const char *why) {
  fprintf(stderr, "%s\n", why);
  exit(5);
}

/* malloc's answer; ends the program where there is none. */
static inline void *need(void *block) {
  if (block == NULL) die("out of memory");
  return block;
}

/* Keeps the compiler from reasoning about a block: a calloc whose block only goes to free would
 * otherwise be left out, and so would writes to a block that is freed next. */
static inline void escape(void *block) { __asm__ volatile("" : : "r"(block) : "memory"); }

/* Memory for the experiment's own tables: not from malloc, and resident from the start. */
static inline void *own_table(size_t bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
  void *table = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (table == MAP_FAILED) die("mmap");
  return table;
}

/* Writes one byte in each `step` bytes of a block, and the last. */
static inline void touch_each(void *block, size_t size, size_t step) {
  volatile uint8_t *bytes = (volatile uint8_t *)block;
  for (size_t at = 0; at < size; at += step) bytes[at] = 1;
  if (size > 0) bytes[size - 1] = 1;
}

/* Writes one byte in each 4 KiB of a block, and the last. */
static inline void touch(void *block, size_t size) { touch_each(block, size, TOUCH_STEP); }

/* Page faults of the program so far. */
static inline long faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

static inline int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Processor time of all threads of this process so far. */
static inline int64_t processor_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline void idle_ms(size_t ms) {
  struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

/* Reads a small file into `text`; returns its length, 0 where it cannot be read. */
static inline size_t read_file(const char *path, char *text, size_t room) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  size_t length = 0;
  if (file >= 0) {
    ssize_t got;
    while (length + 1 < room && (got = read(file, text + length, room - 1 - length)) > 0) {
      length += (size_t)got;
    }
    close(file);
  }
  text[length] = '\0';
  return length;
}

/* The number after `key` in a file of lines `key: number kB`, in bytes; 0 where it is not there. */
static inline size_t field_bytes(const char *path, const char *key) {
  char text[8192];
  read_file(path, text, sizeof text);
  const char *line = strstr(text, key);
  return line == NULL ? 0 : (size_t)strtoull(line + strlen(key), NULL, 10) * KIB;
}

/* Resident memory of this process. */
static inline size_t rss(void) { return field_bytes("/proc/self/status", "VmRSS:"); }

/* The most that was ever resident in this process, since its exec. */
static inline size_t peak_rss(void) { return field_bytes("/proc/self/status", "VmHWM:"); }

/* Resident memory of this process that lies in transparent huge pages. */
static inline size_t huge_rss(void) {
  return field_bytes("/proc/self/smaps_rollup", "AnonHugePages:");
}

/* Resident memory of this process that the kernel may take at any time (MADV_FREE). */
static inline size_t lazy_rss(void) { return field_bytes("/proc/self/smaps_rollup", "LazyFree:"); }

static inline double in_mib(size_t bytes) { return (double)bytes / (double)MIB; }

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

/* Uniform in [low, high]. */
static inline size_t rng_range(rng_t *rng, size_t low, size_t high) {
  uint64_t width = high - low + 1;
  return low + (size_t)(((unsigned __int128)rng_next(rng) * width) >> 64);
}

#endif
