/* One survivor in twenty: how much of the memory around the survivors goes back?
 *
 * 150,000 blocks of 512 bytes, 100,000 of 1 KiB and 50,000 of 2 KiB, mixed at random and written
 * whole; all but one in twenty, chosen at random, are freed; then the program idles. The least that
 * can stay is the OS pages on which a live byte lies, which the program counts. "ratio" compares
 * what the blocks left in resident memory (without what the program had before the first of them,
 * "rss-base") with those pages.
 *
 * Afterwards each survivor must still hold what was written into it.
 */
#include "experiment.h"

enum { SCALE, IDLE_MS };

static option_t options[] = {
    {"scale", NULL, 100, NULL},
    {"idle-ms", NULL, 2000, NULL},
};

typedef struct {
  uint8_t *bytes;
  size_t size;
} block_t;

static block_t *blocks;
static size_t count;

/* The sizes in their numbers, then shuffled. */
static void plan(rng_t *rng) {
  static const struct {
    size_t number, size;
  } kinds[] = {{150000, 512}, {100000, 1024}, {50000, 2048}};
  blocks = own_table(300000 * sizeof *blocks * options[SCALE].value / 100);
  for (size_t k = 0; k < 3; k++) {
    for (size_t i = 0; i < kinds[k].number * options[SCALE].value / 100; i++) {
      blocks[count++].size = kinds[k].size;
    }
  }
  for (size_t i = count; i > 1; i--) {
    size_t other = rng_range(rng, 0, i - 1);
    block_t swapped = blocks[i - 1];
    blocks[i - 1] = blocks[other];
    blocks[other] = swapped;
  }
}

static uint8_t mark_of(size_t index) { return (uint8_t)(index * 131 + 7); }

static int by_value(const void *a, const void *b) {
  uintptr_t left = *(const uintptr_t *)a, right = *(const uintptr_t *)b;
  return (left > right) - (left < right);
}

/* How many OS pages hold a byte of a survivor. `pages` has room for two for each block. */
static size_t live_pages(uintptr_t *pages, size_t page_size) {
  size_t found = 0, distinct = 0;
  for (size_t i = 0; i < count; i++) {
    if (blocks[i].bytes == NULL) continue;
    uintptr_t first = (uintptr_t)blocks[i].bytes / page_size;
    uintptr_t last = ((uintptr_t)blocks[i].bytes + blocks[i].size - 1) / page_size;
    for (uintptr_t page = first; page <= last; page++) pages[found++] = page;
  }
  qsort(pages, found, sizeof *pages, by_value);
  for (size_t i = 0; i < found; i++) distinct += i == 0 || pages[i] != pages[i - 1];
  return distinct;
}

static void check_survivors(void) {
  for (size_t i = 0; i < count; i++) {
    if (blocks[i].bytes == NULL) continue;
    for (size_t at = 0; at < blocks[i].size; at++) {
      if (blocks[i].bytes[at] != mark_of(i)) {
        fprintf(stderr, "survivor %zu was damaged at byte %zu\n", i, at);
        exit(4);
      }
    }
  }
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  rng_t rng = {20};
  plan(&rng);
  uintptr_t *pages = own_table(2 * count * sizeof *pages);
  size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
  size_t base = rss();
  for (size_t i = 0; i < count; i++) {
    blocks[i].bytes = need(malloc(blocks[i].size));
    memset(blocks[i].bytes, mark_of(i), blocks[i].size);
  }
  size_t full = rss();
  for (size_t i = 0; i < count; i++) {
    if (rng_range(&rng, 0, 19) == 0) continue;
    free(blocks[i].bytes);
    blocks[i].bytes = NULL;
  }
  size_t at_once = rss();
  idle_ms(options[IDLE_MS].value);
  size_t after = rss();
  size_t live = live_pages(pages, page_size) * page_size;
  check_survivors();
  metric("rss-base", "MiB", in_mib(base));
  metric("rss-full", "MiB", in_mib(full));
  metric("rss-at-once", "MiB", in_mib(at_once));
  metric("rss-idle", "MiB", in_mib(after));
  metric("live-pages", "MiB", in_mib(live));
  metric("ratio", "ratio", ((double)after - (double)base) / (double)live);
  return 0;
}
