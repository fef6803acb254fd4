/* Every free is remote: a pipeline whose last stage throws everything away.
 *
 * One thread allocates only, its partner frees only (N pairs, N is --threads), with sizes of 16 to
 * 1023 bytes, in batches that are freed as soon as they arrive. Little is live: what is measured is
 * the way back of a block to the thread that owns it.
 *
 * bench: threads=1,2
 */
#include "queue.h"

enum { BATCH = 2048 };

typedef struct {
  uint64_t *blocks[BATCH];
} batch_t;

typedef struct {
  queue_t full;
  queue_t empty;
  batch_t batches[QUEUE_ROOM];
  unsigned number;
  uint64_t sum;
} pair_t;

static void *allocate(void *argument) {
  pair_t *pair = argument;
  rng_t rng = rng_for(pair->number);
  size_t rounds = scaled(5000);
  for (size_t i = 0; i < rounds; i++) {
    batch_t *batch = queue_take(&pair->empty);
    for (size_t j = 0; j < BATCH; j++) {
      uint64_t *block = need(malloc(rng_log(&rng, 4, 10)));
      block[0] = i;
      block[1] = j;
      batch->blocks[j] = block;
    }
    queue_put(&pair->full, batch);
  }
  queue_put(&pair->full, NULL);
  return NULL;
}

static void *release(void *argument) {
  pair_t *pair = argument;
  batch_t *batch;
  while ((batch = queue_take(&pair->full)) != NULL) {
    for (size_t j = 0; j < BATCH; j++) {
      pair->sum += batch->blocks[j][0] * 3 + batch->blocks[j][1];
      free(batch->blocks[j]);
    }
    queue_put(&pair->empty, batch);
  }
  return NULL;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  static pair_t pairs[MAX_THREADS];
  pthread_t ids[2 * MAX_THREADS];
  for (unsigned t = 0; t < option_threads; t++) {
    pair_t *pair = &pairs[t];
    pair->number = t;
    queue_init(&pair->full);
    queue_init(&pair->empty);
    for (size_t i = 0; i < QUEUE_ROOM; i++) queue_put(&pair->empty, &pair->batches[i]);
    ids[2 * t] = start_thread(allocate, pair);
    ids[2 * t + 1] = start_thread(release, pair);
  }
  uint64_t sum = 0;
  for (unsigned t = 0; t < option_threads; t++) {
    pthread_join(ids[2 * t], NULL);
    pthread_join(ids[2 * t + 1], NULL);
    sum += pairs[t].sum;
  }
  print_checksum(sum);
  return 0;
}
