/* Buffers that grow: lines, packets and documents put together piece by piece.
 *
 * Many buffers grow side by side by random pieces; half of them double their capacity when full,
 * the others ask for exactly what they need, as naive programs do. A buffer that has reached its
 * final length (100 bytes to 200 KiB, short ones most often) is shrunk to fit, checked and
 * replaced.
 *
 * bench: threads=1,2
 */
#include "common.h"

typedef struct {
  uint8_t *bytes;
  size_t length;
  size_t room;
  size_t goal;
  int exact;
} buffer_t;

static void begin(buffer_t *buffer, rng_t *rng) {
  memset(buffer, 0, sizeof *buffer);
  buffer->goal = rng_log(rng, 7, rng_below(rng, 16) ? 13 : 18);
  buffer->exact = (int)(rng_next(rng) & 1);
}

static void append(buffer_t *buffer, size_t piece, uint8_t fill) {
  size_t length = buffer->length + piece;
  if (length > buffer->room) {
    size_t room = buffer->exact ? length : 2 * buffer->room;
    buffer->room = room > length ? room : length;
    buffer->bytes = need(realloc(buffer->bytes, buffer->room));
  }
  memset(buffer->bytes + buffer->length, fill, piece);
  buffer->length = length;
}

static uint64_t finish(buffer_t *buffer) {
  if (buffer->length == 0) return 0;
  buffer->bytes = need(realloc(buffer->bytes, buffer->length));
  uint64_t sum = buffer->length;
  for (size_t i = 0; i < buffer->length; i += 61) sum += buffer->bytes[i];
  free(buffer->bytes);
  return sum;
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t count = scaled(12000), steps = scaled(2600000);
  uint64_t sum = 0;
  buffer_t *buffers = need(calloc(count, sizeof *buffers));
  for (size_t i = 0; i < count; i++) begin(&buffers[i], &rng);
  for (size_t i = 0; i < steps; i++) {
    buffer_t *buffer = &buffers[rng_below(&rng, count)];
    append(buffer, rng_range(&rng, 8, 64 + buffer->goal / 16), (uint8_t)i);
    if (buffer->length >= buffer->goal) {
      sum += finish(buffer);
      begin(buffer, &rng);
    }
  }
  for (size_t i = 0; i < count; i++) sum += finish(&buffers[i]);
  free(buffers);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
