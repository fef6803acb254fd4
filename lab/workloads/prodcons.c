/* Producers and consumers: requests built by one thread, kept and freed by another.
 *
 * N pairs of threads (N is --threads). The producer allocates messages of 16 to 511 bytes and hands
 * them over 256 at a time; the consumer keeps the newest 600 batches and frees the oldest. The
 * producer frees one message in eight itself, so its heap sees local and remote frees.
 *
 * bench: threads=1,2
 */
#include "queue.h"

enum { BATCH = 256, WINDOW = 600 };

typedef struct {
  uint8_t *messages[BATCH];
} batch_t;

typedef struct {
  queue_t queue;
  unsigned number;
  uint64_t consumed;
} pair_t;

static void *produce(void *argument) {
  pair_t *pair = argument;
  rng_t rng = rng_for(pair->number);
  size_t batches = scaled(24000);
  for (size_t i = 0; i < batches; i++) {
    batch_t *batch = need(malloc(sizeof *batch));
    for (size_t j = 0; j < BATCH; j++) {
      size_t size = rng_log(&rng, 4, 9);
      uint8_t *message = need(malloc(size));
      memset(message, (int)(i + j), size);
      if ((j & 7) == 0) {
        free(message);
        message = need(malloc(32));
        message[0] = (uint8_t)j;
      }
      batch->messages[j] = message;
    }
    queue_put(&pair->queue, batch);
  }
  queue_put(&pair->queue, NULL);
  return NULL;
}

static uint64_t drop_batch(batch_t *batch) {
  uint64_t sum = 0;
  if (batch == NULL) return 0;
  for (size_t j = 0; j < BATCH; j++) {
    sum += batch->messages[j][0];
    free(batch->messages[j]);
  }
  free(batch);
  return sum;
}

static void *consume(void *argument) {
  pair_t *pair = argument;
  batch_t *window[WINDOW] = {NULL};
  size_t at = 0;
  batch_t *batch;
  while ((batch = queue_take(&pair->queue)) != NULL) {
    pair->consumed += drop_batch(window[at]);
    window[at] = batch;
    at = (at + 1) % WINDOW;
  }
  for (at = 0; at < WINDOW; at++) pair->consumed += drop_batch(window[at]);
  return NULL;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  static pair_t pairs[MAX_THREADS];
  pthread_t ids[2 * MAX_THREADS];
  for (unsigned t = 0; t < option_threads; t++) {
    queue_init(&pairs[t].queue);
    pairs[t].number = t;
    ids[2 * t] = start_thread(produce, &pairs[t]);
    ids[2 * t + 1] = start_thread(consume, &pairs[t]);
  }
  uint64_t sum = 0;
  for (unsigned t = 0; t < option_threads; t++) {
    pthread_join(ids[2 * t], NULL);
    pthread_join(ids[2 * t + 1], NULL);
    sum += pairs[t].consumed;
  }
  print_checksum(sum);
  return 0;
}
