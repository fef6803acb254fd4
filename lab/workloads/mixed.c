/* Small mixed sizes, random lifetime: the steady state of a long-lived server.
 *
 * A table of slots holds blocks of 16 bytes to 1 KiB, small ones far more often than large ones.
 * Each step frees a random slot and fills it with a block of a fresh size; one step in eight is a
 * calloc.
 *
 * bench: threads=1,2
 */
#include "common.h"

typedef struct {
  uint8_t *block;
  uint32_t size;
} slot_t;

static void fill(slot_t *slot, rng_t *rng) {
  size_t size = rng_log(rng, 4, 10);
  slot->size = (uint32_t)size;
  if ((rng_next(rng) & 7) == 0) {
    slot->block = need(calloc(1, size));
    slot->block[size / 2] += (uint8_t)size;
  } else {
    slot->block = need(malloc(size));
    memset(slot->block, (int)(size & 0xff), size);
  }
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t count = scaled(150000), steps = scaled(8000000);
  uint64_t sum = 0;
  slot_t *slots = need(calloc(count, sizeof *slots));
  for (size_t i = 0; i < count; i++) fill(&slots[i], &rng);
  for (size_t i = 0; i < steps; i++) {
    /* Half of the steps stay in a moving window of recent slots. */
    size_t k = (i & 1) ? rng_below(&rng, count) : (i / 64 + rng_below(&rng, 256)) % count;
    slot_t *slot = &slots[k];
    sum += slot->block[slot->size / 2];
    free(slot->block);
    fill(slot, &rng);
  }
  for (size_t i = 0; i < count; i++) {
    sum += slots[i].block[slots[i].size / 2];
    free(slots[i].block);
  }
  free(slots);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
