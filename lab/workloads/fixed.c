/* Small blocks of one size: nodes of a graph or a queue in a program that has one busy type.
 *
 * Each round allocates a list of 64-byte nodes, then takes random nodes out and puts fresh ones in
 * their place, then frees everything: every other round in allocation order, else in a shuffled
 * order.
 *
 * bench: threads=1,2
 */
#include "common.h"

enum { NODE = 64 };

static void shuffle(uint64_t **nodes, size_t count, rng_t *rng) {
  for (size_t i = count; i > 1; i--) {
    size_t j = rng_below(rng, i);
    uint64_t *swap = nodes[i - 1];
    nodes[i - 1] = nodes[j];
    nodes[j] = swap;
  }
}

static uint64_t *new_node(uint64_t value) {
  uint64_t *node = need(malloc(NODE));
  node[0] = value;
  node[7] = ~value;
  return node;
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t count = scaled(600000), rounds = 5;
  uint64_t sum = 0;
  uint64_t **nodes = need(malloc(count * sizeof *nodes));
  for (size_t round = 0; round < rounds; round++) {
    for (size_t i = 0; i < count; i++) nodes[i] = new_node(i ^ round);
    for (size_t i = 0; i < 4 * count; i++) {
      /* Neighbours first: programs touch what they touched a moment ago. */
      size_t k = (i & 3) ? i / 4 : rng_below(&rng, count);
      sum += nodes[k][0] + nodes[k][7];
      free(nodes[k]);
      nodes[k] = new_node(i);
    }
    if (round & 1) shuffle(nodes, count, &rng);
    for (size_t i = 0; i < count; i++) {
      sum += nodes[i][0];
      free(nodes[i]);
    }
  }
  free(nodes);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
