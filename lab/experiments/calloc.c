/* The cost of calloc and free of one size.
 *
 * untouched: the blocks are never written; a page-aware allocator needs no work for their bytes.
 * touched:   one byte in each 4 KiB of each block is written before its free.
 * once:      only the first block is touched. The mean over the iterations after that touch, with
 *            the free of the touched block ("mean") and without it ("mean-later").
 *
 * "faults" are page faults of one calloc, with its touch, and free.
 *
 * Ends after --iterations or --ms, whichever comes first, but not before three iterations; once: after --iterations.
 */
#include "experiment.h"

enum { SIZE, MODE, ITERATIONS, MS };
enum { UNTOUCHED, TOUCHED, ONCE };

static option_t options[] = {
    {"size", NULL, 100 * 1024 * 1024, NULL},
    {"mode", "untouched touched once", UNTOUCHED, NULL},
    {"iterations", NULL, 1000, NULL},
    {"ms", NULL, 500, NULL},
};

static void *zeroed(void) {
  void *block = need(calloc(options[SIZE].value, 1));
  escape(block);
  return block;
}

static int by_value(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

static int goes_on(size_t done, int64_t begun) {
  if (done < 3) return 1;
  return done < options[ITERATIONS].value && now_ns() - begun < (int64_t)options[MS].value * 1000000;
}

/* Each iteration timed for itself. */
static void each(void) {
  int64_t *times = own_table((options[ITERATIONS].value + 3) * sizeof *times);
  size_t done = 0;
  long before = faults();
  for (int64_t begun = now_ns(); goes_on(done, begun); done++) {
    int64_t start = now_ns();
    void *block = zeroed();
    if (options[MODE].value == TOUCHED) touch(block, options[SIZE].value);
    free(block);
    times[done] = now_ns() - start;
  }
  metric("faults", "count", (double)(faults() - before) / (double)done);
  qsort(times, done, sizeof *times, by_value);
  metric("min", "us", (double)times[0] / 1e3);
  metric("median", "us", (double)times[done / 2] / 1e3);
  metric("iterations", "count", (double)done);
}

static void after_one_touch(void) {
  void *block = zeroed();
  touch(block, options[SIZE].value);
  long before = faults();
  int64_t touched = now_ns();
  free(block);
  int64_t freed = now_ns();
  size_t done = 0;
  for (; done < options[ITERATIONS].value; done++) free(zeroed());
  int64_t end = now_ns();
  metric("faults", "count", (double)(faults() - before) / (double)done);
  metric("mean", "us", (double)(end - touched) / 1e3 / (double)done);
  metric("mean-later", "us", (double)(end - freed) / 1e3 / (double)done);
  metric("iterations", "count", (double)done);
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  if (options[MODE].value == ONCE) {
    after_one_touch();
  } else {
    each();
  }
  return 0;
}
