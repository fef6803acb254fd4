/* A server in the manner of Larson and Krishnan: sessions outlive the thread that opened them.
 *
 * Each thread owns a table of blocks of 16 bytes to 2 KiB and replaces random ones. After a while
 * it starts a successor, hands its table over and ends; the successor frees blocks that a dead
 * thread allocated. N chains of threads run side by side (N is --threads).
 *
 * bench: threads=1,2
 */
#include "common.h"

enum { GENERATIONS = 40 };

typedef struct {
  uint8_t *block;
  uint32_t size;
} slot_t;

typedef struct {
  slot_t *slots;
  size_t count;
  size_t steps;
  rng_t rng;
  unsigned generation;
  uint64_t sum;
  pthread_mutex_t lock;
  pthread_cond_t ended;
} table_t;

static void fill(slot_t *slot, rng_t *rng) {
  size_t size = rng_log(rng, 4, 11);
  slot->size = (uint32_t)size;
  slot->block = need(malloc(size));
  memset(slot->block, (int)(size & 0x7f), size < 256 ? size : 256);
  slot->block[size - 1] = (uint8_t)size;
}

/* One thread of the chain; the last one wakes the main thread. */
static void *serve(void *argument) {
  table_t *table = argument;
  for (size_t i = 0; i < table->steps; i++) {
    slot_t *slot = &table->slots[rng_below(&table->rng, table->count)];
    table->sum += slot->block[0] + slot->block[slot->size - 1];
    free(slot->block);
    fill(slot, &table->rng);
  }
  pthread_mutex_lock(&table->lock);
  table->generation++;
  if (table->generation < GENERATIONS) {
    pthread_detach(start_thread(serve, table));
  } else {
    pthread_cond_signal(&table->ended);
  }
  pthread_mutex_unlock(&table->lock);
  return NULL;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  static table_t tables[MAX_THREADS];
  for (unsigned t = 0; t < option_threads; t++) {
    table_t *table = &tables[t];
    pthread_mutex_init(&table->lock, NULL);
    pthread_cond_init(&table->ended, NULL);
    table->rng = rng_for(t);
    table->count = scaled(60000);
    table->steps = scaled(6000000) / GENERATIONS;
    table->slots = need(calloc(table->count, sizeof *table->slots));
    for (size_t i = 0; i < table->count; i++) fill(&table->slots[i], &table->rng);
    pthread_detach(start_thread(serve, table));
  }
  uint64_t sum = 0;
  for (unsigned t = 0; t < option_threads; t++) {
    table_t *table = &tables[t];
    pthread_mutex_lock(&table->lock);
    while (table->generation < GENERATIONS) pthread_cond_wait(&table->ended, &table->lock);
    pthread_mutex_unlock(&table->lock);
    sum += table->sum;
    for (size_t i = 0; i < table->count; i++) free(table->slots[i].block);
    free(table->slots);
  }
  print_checksum(sum);
  return 0;
}
