/* Big buffers used again and again: images, file chunks, network reads.
 *
 * A table of 24 buffers of 64 KiB to 8 MiB; each step replaces one by another size. A third come
 * from calloc and are read sparsely; the others are written in part, as far as the data reaches.
 *
 * bench: threads=1,2
 */
#include "common.h"

enum { BUFFERS = 24 };

typedef struct {
  uint8_t *bytes;
  size_t used;
} buffer_t;

static void fill(buffer_t *buffer, rng_t *rng, uint8_t value) {
  size_t size = rng_log(rng, 16, 23);
  if (rng_below(rng, 3) == 0) {
    buffer->bytes = need(calloc(size, 1));
    buffer->used = size / 4;
    for (size_t i = 0; i < size; i += 16384) buffer->bytes[i] += value;
  } else {
    buffer->bytes = need(malloc(size));
    buffer->used = size / 4 + rng_below(rng, size / 2);
    memset(buffer->bytes, value, buffer->used);
  }
}

static uint64_t drop(buffer_t *buffer) {
  uint64_t sum = 0;
  for (size_t i = 0; i < buffer->used; i += 4096) sum += buffer->bytes[i];
  free(buffer->bytes);
  return sum;
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  buffer_t buffers[BUFFERS];
  size_t steps = scaled(10000);
  uint64_t sum = 0;
  for (size_t i = 0; i < BUFFERS; i++) fill(&buffers[i], &rng, (uint8_t)i);
  for (size_t i = 0; i < steps; i++) {
    buffer_t *buffer = &buffers[rng_below(&rng, BUFFERS)];
    sum += drop(buffer);
    fill(buffer, &rng, (uint8_t)i);
  }
  for (size_t i = 0; i < BUFFERS; i++) sum += drop(&buffers[i]);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
