/* What do aligned blocks cost that come and go?
 *
 * A number of live blocks of one alignment, of random lengths between two bounds; each is written up to
 * `touch` bytes (0: all of it), one byte in each 4 KiB. Then blocks chosen at random are freed and
 * replaced. "peak" is the most that was resident beyond what the program had before the first block,
 * "live" the most that the live blocks had touched, "ratio" one against the other.
 */
#include "experiment.h"

enum { ALIGN, LEAST, MOST, LIVE, REPLACED, TOUCH };

static option_t options[] = {
    {"align", NULL, 2097152, NULL}, {"least", NULL, 2097152, NULL},  {"most", NULL, 2097152, NULL},
    {"live", NULL, 75, NULL},       {"replaced", NULL, 600, NULL}, {"touch", NULL, 0, NULL},
};

typedef struct {
  uint8_t *bytes;
  size_t touched;
} block_t;

static size_t live;

static void allocate(block_t *block, rng_t *rng) {
  size_t size = rng_range(rng, options[LEAST].value, options[MOST].value);
  size_t touched = options[TOUCH].value != 0 && options[TOUCH].value < size ? options[TOUCH].value : size;
  void *bytes;
  errno = posix_memalign(&bytes, options[ALIGN].value, size);
  if (errno != 0) die("out of memory");
  if ((uintptr_t)bytes % options[ALIGN].value != 0) {
    fprintf(stderr, "%p is not aligned to %zu\n", bytes, options[ALIGN].value);
    exit(4);
  }
  touch(bytes, touched);
  block->bytes = bytes;
  block->touched = (touched + TOUCH_STEP - 1) / TOUCH_STEP * TOUCH_STEP;
  live += block->touched;
}

static void release(block_t *block) {
  live -= block->touched;
  free(block->bytes);
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t count = options[LIVE].value, most = 0;
  block_t *blocks = own_table(count * sizeof *blocks);
  rng_t rng = {21};
  free(need(malloc(1)));
  size_t base = rss();
  int64_t begun = processor_ns();
  long faults_before = faults();
  for (size_t i = 0; i < count; i++) allocate(&blocks[i], &rng);
  most = live;
  for (size_t i = 0; i < options[REPLACED].value; i++) {
    block_t *block = &blocks[rng_range(&rng, 0, count - 1)];
    release(block);
    allocate(block, &rng);
    if (live > most) most = live;
  }
  double peak = in_mib(peak_rss() - base);
  metric("cpu", "ms", (double)(processor_ns() - begun) / 1e6);
  metric("faults", "count", (double)(faults() - faults_before));
  metric("peak", "MiB", peak);
  metric("live", "MiB", in_mib(most));
  metric("ratio", "ratio", peak / in_mib(most));
  for (size_t i = 0; i < count; i++) release(&blocks[i]);
  return 0;
}
