/* A compiler: per source file a syntax tree is built, rewritten and dropped at once.
 *
 * Nodes of five kinds (24 to 120 bytes) carry names of 3 to 40 characters and child arrays that
 * grow with realloc. Names of declarations go into a symbol table which lives until the end. Each
 * file is freed as a batch, in the order of a walk.
 *
 * bench: threads=1,2
 */
#include "common.h"

typedef struct node {
  struct node **children;
  char *name;
  uint32_t count;
  uint32_t kind;
} node_t;

static const size_t kind_bytes[5] = {0, 16, 32, 64, 96};

typedef struct {
  char **names;
  size_t count;
  size_t room;
} symbols_t;

static char *make_name(rng_t *rng) {
  char text[48];
  size_t length = rng_range(rng, 3, (rng_next(rng) & 7) ? 16 : 40);
  for (size_t i = 0; i < length; i++) text[i] = (char)('a' + rng_below(rng, 26));
  text[length] = '\0';
  return need(strdup(text));
}

static void declare(symbols_t *symbols, const char *name) {
  if (symbols->count == symbols->room) {
    symbols->room = symbols->room ? 2 * symbols->room : 64;
    symbols->names = need(realloc(symbols->names, symbols->room * sizeof(char *)));
  }
  symbols->names[symbols->count++] = need(strdup(name));
}

static void adopt(node_t *parent, node_t *child) {
  uint32_t count = parent->count;
  /* Room for 2, 4, 8, ... children. */
  if ((count & (count - 1)) == 0 && count != 1) {
    size_t room = count ? 2 * count : 2;
    parent->children = need(realloc(parent->children, room * sizeof(node_t *)));
  }
  parent->children[parent->count++] = child;
}

static node_t *parse(rng_t *rng, symbols_t *symbols, unsigned depth) {
  uint32_t kind = (uint32_t)rng_below(rng, 5);
  node_t *node = need(calloc(1, sizeof *node + kind_bytes[kind]));
  node->kind = kind;
  if (kind & 1) node->name = make_name(rng);
  if (kind == 3 && rng_below(rng, 4) == 0) declare(symbols, node->name);
  size_t children = depth ? rng_range(rng, depth > 6 ? 3 : 0, depth > 3 ? 6 : 4) : 0;
  for (size_t i = 0; i < children; i++) adopt(node, parse(rng, symbols, depth - 1));
  return node;
}

/* A pass that folds some nodes: a fresh node takes the place of the old one. */
static node_t *fold(node_t *node, uint64_t *sum) {
  for (uint32_t i = 0; i < node->count; i++) node->children[i] = fold(node->children[i], sum);
  *sum += node->kind * 31 + node->count + (node->name ? (uint8_t)node->name[0] : 0);
  if (node->kind != 2) return node;
  node_t *fresh = need(malloc(sizeof *fresh + kind_bytes[4]));
  *fresh = *node;
  fresh->kind = 4;
  free(node);
  return fresh;
}

static void drop(node_t *node) {
  for (uint32_t i = 0; i < node->count; i++) drop(node->children[i]);
  free(node->children);
  free(node->name);
  free(node);
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  symbols_t symbols = {NULL, 0, 0};
  size_t files = scaled(10);
  uint64_t sum = 0;
  for (size_t i = 0; i < files; i++) {
    node_t *root = parse(&rng, &symbols, 10);
    for (int pass = 0; pass < 3; pass++) root = fold(root, &sum);
    drop(root);
  }
  for (size_t i = 0; i < symbols.count; i++) {
    sum += (uint8_t)symbols.names[i][1];
    free(symbols.names[i]);
  }
  free(symbols.names);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
