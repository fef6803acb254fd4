/* Random sizes with a long tail, bursts, and threads that come and go.
 *
 * Each worker is a series of 30 short-lived threads. A thread allocates bursts of blocks (16 bytes
 * to 64 KiB, half of them under 128 bytes), keeps a random part of every burst for later, frees the
 * rest newest first, and ends with a table of survivors which the next thread of the series frees
 * while it works.
 *
 * bench: threads=1,2
 */
#include "common.h"

enum { SERIES = 30, BURST = 400 };

typedef struct {
  uint8_t *block;
  size_t size;
} slot_t;

typedef struct {
  rng_t rng;
  slot_t *kept;
  size_t count;
  size_t bursts;
  uint64_t sum;
} life_t;

static size_t pick_size(rng_t *rng) {
  uint64_t dice = rng_below(rng, 1000);
  if (dice < 500) return rng_range(rng, 16, 127);
  if (dice < 850) return rng_log(rng, 7, 10);
  if (dice < 990) return rng_log(rng, 10, 13);
  return rng_log(rng, 13, 16);
}

static slot_t new_block(rng_t *rng) {
  slot_t slot;
  slot.size = pick_size(rng);
  slot.block = need(malloc(slot.size));
  mark_block(slot.block, slot.size, (uint8_t)slot.size);
  return slot;
}

static uint64_t drop_block(slot_t *slot) {
  if (slot->block == NULL) return 0;
  uint64_t sum = read_block(slot->block, slot->size);
  free(slot->block);
  slot->block = NULL;
  return sum;
}

static void *live(void *argument) {
  life_t *life = argument;
  slot_t burst[BURST];
  for (size_t round = 0; round < life->bursts; round++) {
    for (size_t i = 0; i < BURST; i++) burst[i] = new_block(&life->rng);
    for (size_t i = BURST; i-- > 0;) {
      if (rng_below(&life->rng, 8) == 0) {
        slot_t *old = &life->kept[rng_below(&life->rng, life->count)];
        life->sum += drop_block(old);
        *old = burst[i];
      } else {
        life->sum += drop_block(&burst[i]);
      }
    }
  }
  return NULL;
}

static uint64_t work(unsigned thread) {
  life_t life = {rng_for(thread), NULL, scaled(90000), scaled(1100), 0};
  life.kept = need(calloc(life.count, sizeof *life.kept));
  for (unsigned i = 0; i < SERIES; i++) pthread_join(start_thread(live, &life), NULL);
  for (size_t i = 0; i < life.count; i++) life.sum += drop_block(&life.kept[i]);
  free(life.kept);
  return life.sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
