/* calloc of recycled blocks that are not touched afterwards: does resident memory grow?
 *
 * touched:   malloc and touch --mib of blocks of one size, free all, wait, calloc all. By then the
 *            memory went back to the system (or should have), so clearing it would make it resident.
 *            Growth is counted from the end of the wait.
 * untouched: calloc all, free all, calloc all again, without a wait. Growth is counted from the end
 *            of the first callocs, so it shows what free wrote into the blocks as well.
 */
#include "experiment.h"

enum { SIZE, FORM, TOTAL_MIB, WAIT_MS };
enum { TOUCHED, UNTOUCHED };

static option_t options[] = {
    {"size", NULL, 4096, NULL},
    {"form", "touched untouched", TOUCHED, NULL},
    {"mib", NULL, 128, NULL},
    {"wait-ms", NULL, 1500, NULL},
};

static void **blocks;
static size_t count;

/* calloc of all blocks; the mean cost of one in microseconds. */
static double calloc_all(void) {
  int64_t begun = now_ns();
  for (size_t i = 0; i < count; i++) {
    blocks[i] = need(calloc(options[SIZE].value, 1));
    escape(blocks[i]);
  }
  return (double)(now_ns() - begun) / 1e3 / (double)count;
}

static void malloc_and_touch_all(void) {
  for (size_t i = 0; i < count; i++) {
    blocks[i] = need(malloc(options[SIZE].value));
    touch(blocks[i], options[SIZE].value);
  }
}

static void free_all(void) {
  for (size_t i = 0; i < count; i++) free(blocks[i]);
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  count = options[TOTAL_MIB].value * MIB / options[SIZE].value;
  blocks = own_table(count * sizeof *blocks);
  size_t base = rss(), before;
  if (options[FORM].value == TOUCHED) {
    malloc_and_touch_all();
    free_all();
    idle_ms(options[WAIT_MS].value);
    before = rss();
  } else {
    calloc_all();
    before = rss();
    free_all();
  }
  double cost = calloc_all();
  size_t after = rss();
  metric("rss-base", "MiB", in_mib(base));
  metric("rss-before", "MiB", in_mib(before));
  metric("growth", "MiB", in_mib(after) - in_mib(before));
  metric("calloc", "us", cost);
  return 0;
}
