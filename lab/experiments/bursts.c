/* What does giving memory back cost when it is soon needed again?
 *
 * A phase of work takes `mib` MiB in blocks, writes all of them, checks a byte of each and frees them; then the program
 * pauses for `pause` ms. The first phase is not measured. Figures are medians over the rounds: the time and the page
 * faults of a phase, the processor time of a pause (an allocator's helper thread), resident memory at the end of a
 * pause, and once more `idle` ms after the last phase. Nothing is live in a pause, so all of it is what the allocator
 * keeps.
 *
 * small:   16 B to 4 KiB, as many in each power of two
 * large:   4 to 256 KiB, likewise
 * mixed:   as many bytes in small blocks as in large ones
 * backup:  `mib` MiB of a file are read in buffers of 1 MiB and packed into other ones, which are kept until the file is
 *          done; those that were read are freed at once
 */
#include "experiment.h"

enum { WORK, MIBS, PAUSE, ROUNDS, IDLE };
enum { SMALL, LARGE, MIXED, BACKUP };

static option_t options[] = {
    {"work", "small large mixed backup", MIXED, NULL},
    {"mib", NULL, 64, NULL},
    {"pause", NULL, 100, NULL},
    {"rounds", NULL, 8, NULL},
    {"idle", NULL, 1000, NULL},
};

enum { MOST_ROUNDS = 1000 };

/* Live blocks, with room for the smallest mean length. */
static uint8_t **blocks;
static size_t room;

/* A length between 2^low and 2^high, each power of two as likely as the others. */
static size_t length(rng_t *rng, size_t low, size_t high) {
  size_t least = (size_t)1 << rng_range(rng, low, high - 1);
  return rng_range(rng, least, 2 * least);
}

static size_t next_length(rng_t *rng, size_t small, size_t large) {
  int is_small = options[WORK].value == SMALL || (options[WORK].value == MIXED && small <= large);
  return is_small ? length(rng, 4, 12) : length(rng, 12, 18);
}

static void damaged(void) {
  fputs("a block was damaged\n", stderr);
  exit(4);
}

static void take_and_free(size_t round) {
  rng_t rng = {round};
  size_t count = 0, small = 0, large = 0;
  while (small + large < options[MIBS].value * MIB && count < room) {
    size_t size = next_length(&rng, small, large);
    blocks[count] = need(malloc(size));
    memset(blocks[count++], (int)(round + 1), size);
    *(size <= 4 * KIB ? &small : &large) += size;
  }
  for (size_t i = 0; i < count; i++) {
    if (blocks[i][0] != (uint8_t)(round + 1)) damaged();
    free(blocks[i]);
  }
}

/* Packs runs of equal bytes; returns the length, at most twice that of `from`. */
static size_t pack(uint8_t *to, const uint8_t *from, size_t size) {
  size_t length = 0;
  for (size_t at = 0; at < size;) {
    size_t run = 1;
    while (at + run < size && run < 255 && from[at + run] == from[at]) run++;
    to[length++] = (uint8_t)run;
    to[length++] = from[at];
    at += run;
  }
  return length;
}

static void back_up(int file) {
  size_t count = options[MIBS].value, packed = 0;
  static size_t before;
  for (size_t i = 0; i < count; i++) {
    uint8_t *read_into = need(malloc(MIB));
    if (pread(file, read_into, MIB, (off_t)(i * MIB)) != (ssize_t)MIB) die("pread");
    blocks[i] = need(malloc(2 * MIB));
    packed += pack(blocks[i], read_into, MIB);
    free(read_into);
  }
  for (size_t i = 0; i < count; i++) free(blocks[i]);
  if (before != 0 && packed != before) damaged();
  before = packed;
}

/* A file of runs of 1 to 6 equal bytes, in memory. */
static int a_file(void) {
  int file = memfd_create("bursts", MFD_CLOEXEC);
  uint8_t *bytes = own_table(MIB);
  rng_t rng = {1};
  if (file < 0) die("memfd_create");
  for (size_t i = 0; i < options[MIBS].value; i++) {
    for (size_t at = 0; at < MIB;) {
      uint64_t word = rng_next(&rng);
      for (size_t run = 1 + word % 6; run > 0 && at < MIB; run--) bytes[at++] = (uint8_t)(word >> 32);
    }
    if (write(file, bytes, MIB) != (ssize_t)MIB) die("write");
  }
  munmap(bytes, MIB);
  return file;
}

static int by_value(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static void median(const char *name, const char *unit, double *values, size_t count) {
  qsort(values, count, sizeof *values, by_value);
  metric(name, unit, (values[(count - 1) / 2] + values[count / 2]) / 2);
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t rounds = options[ROUNDS].value;
  if (rounds < 1 || rounds > MOST_ROUNDS || options[MIBS].value < 1) usage(argv[0], options, 5);
  static double wall[MOST_ROUNDS], cpu[MOST_ROUNDS], fault[MOST_ROUNDS], pause_cpu[MOST_ROUNDS], kept[MOST_ROUNDS];
  room = options[MIBS].value * (MIB / 256) + 1024;
  blocks = own_table(room * sizeof *blocks);
  int file = options[WORK].value == BACKUP ? a_file() : -1;
  free(need(malloc(1)));
  size_t base = rss();
  for (size_t round = 0; round <= rounds; round++) {
    int64_t begun = now_ns(), processor = processor_ns();
    long faults_before = faults();
    if (options[WORK].value == BACKUP) {
      back_up(file);
    } else {
      take_and_free(round);
    }
    int64_t end = now_ns(), spent = processor_ns();
    long faults_after = faults();
    if (round > 0) {
      wall[round - 1] = (double)(end - begun) / 1e6;
      cpu[round - 1] = (double)(spent - processor) / 1e6;
      fault[round - 1] = (double)(faults_after - faults_before);
    }
    if (round == rounds) break;
    idle_ms(options[PAUSE].value);
    pause_cpu[round] = (double)(processor_ns() - spent) / 1e6;
    kept[round] = in_mib(rss()) - in_mib(base);
  }
  idle_ms(options[IDLE].value);
  metric("rss-idle", "MiB", in_mib(rss()) - in_mib(base));
  median("wall", "ms", wall, rounds);
  median("cpu", "ms", cpu, rounds);
  median("faults", "count", fault, rounds);
  median("pause-cpu", "ms", pause_cpu, rounds);
  median("rss-pause", "MiB", kept, rounds);
  return 0;
}
