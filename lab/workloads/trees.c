/* Deep binary trees: a functional program's heap.
 *
 * A long-lived tree stays while many short-lived trees of various depths are built top down, walked
 * and freed bottom up. Nodes are of 32 bytes.
 *
 * bench: threads=1,2
 */
#include "common.h"

typedef struct node {
  struct node *left;
  struct node *right;
  uint64_t value;
  uint64_t pad;
} node_t;

static node_t *build(unsigned depth, uint64_t value) {
  node_t *node = need(malloc(sizeof *node));
  node->value = value;
  node->left = depth ? build(depth - 1, 2 * value) : NULL;
  node->right = depth ? build(depth - 1, 2 * value + 1) : NULL;
  return node;
}

static uint64_t walk(const node_t *node) {
  return node ? node->value + walk(node->left) * 3 + walk(node->right) : 0;
}

static void drop(node_t *node) {
  if (node == NULL) return;
  drop(node->left);
  drop(node->right);
  free(node);
}

static uint64_t work(unsigned thread) {
  unsigned deepest = option_scale >= 100 ? 19 : 16;
  node_t *stays = build(deepest, thread + 1);
  size_t budget = scaled(30000000);
  uint64_t sum = 0;
  for (unsigned depth = 4; depth <= deepest; depth += 3) {
    size_t trees = (budget / 6) >> (depth + 1);
    for (size_t i = 0; i <= trees; i++) {
      node_t *tree = build(depth, i + 1);
      sum += walk(tree);
      drop(tree);
    }
  }
  sum += walk(stays);
  drop(stays);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
