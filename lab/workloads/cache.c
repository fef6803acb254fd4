/* A key-value cache with a byte budget: what memcached or a page cache in a database does.
 *
 * Keys follow a Zipf-like distribution; values are of 32 bytes to 64 KiB, small ones far more
 * often. A miss inserts, and the least recently used entries go until the budget holds; one hit in
 * ten overwrites its value by one of another size. The mix of sizes drifts, so blocks of one size
 * make room for those of another.
 *
 * bench: threads=1,2
 */
#include "common.h"

typedef struct entry {
  struct entry *newer;
  struct entry *older;
  struct entry *chain;
  uint64_t key;
  uint8_t *value;
  size_t size;
} entry_t;

typedef struct {
  entry_t **buckets;
  size_t mask;
  entry_t *newest;
  entry_t *oldest;
  size_t bytes;
  size_t budget;
} cache_t;

static void unlink_entry(cache_t *cache, entry_t *entry) {
  *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
  *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void push_newest(cache_t *cache, entry_t *entry) {
  entry->newer = NULL;
  entry->older = cache->newest;
  *(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
  cache->newest = entry;
}

static entry_t **find(cache_t *cache, uint64_t key) {
  entry_t **link = &cache->buckets[(key * 0x9e3779b97f4a7c15u >> 20) & cache->mask];
  while (*link && (*link)->key != key) link = &(*link)->chain;
  return link;
}

static void set_value(cache_t *cache, entry_t *entry, size_t size) {
  free(entry->value);
  cache->bytes += size - entry->size;
  entry->size = size;
  entry->value = need(malloc(size));
  mark_block(entry->value, size, (uint8_t)entry->key);
}

static void evict(cache_t *cache) {
  while (cache->bytes > cache->budget) {
    entry_t *entry = cache->oldest;
    *find(cache, entry->key) = entry->chain;
    unlink_entry(cache, entry);
    cache->bytes -= entry->size;
    free(entry->value);
    free(entry);
  }
}

/* Key k is asked for about 1/k as often as key 1. */
static uint64_t pick_key(rng_t *rng, size_t keys) {
  uint64_t key = rng_log(rng, 0, 20);
  return key * 2654435761u % keys;
}

static size_t pick_size(rng_t *rng, size_t phase) {
  unsigned drift = (unsigned)(phase % 4);
  return rng_log(rng, 5 + drift, rng_below(rng, 32) ? 9 + drift : 16);
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  cache_t cache = {NULL, (1u << 17) - 1, NULL, NULL, 0, scaled(80u << 20)};
  size_t steps = scaled(3500000), keys = scaled(1000000);
  uint64_t sum = 0;
  cache.buckets = need(calloc(cache.mask + 1, sizeof *cache.buckets));
  for (size_t i = 0; i < steps; i++) {
    uint64_t key = pick_key(&rng, keys);
    entry_t **link = find(&cache, key), *entry = *link;
    size_t phase = 8 * i / steps;
    if (entry == NULL) {
      entry = need(calloc(1, sizeof *entry));
      entry->key = key;
      *link = entry;
      push_newest(&cache, entry);
      set_value(&cache, entry, pick_size(&rng, phase));
    } else {
      sum += read_block(entry->value, entry->size);
      unlink_entry(&cache, entry);
      push_newest(&cache, entry);
      if (rng_below(&rng, 10) == 0) set_value(&cache, entry, pick_size(&rng, phase));
    }
    evict(&cache);
  }
  cache.budget = 0;
  evict(&cache);
  free(cache.buckets);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
