/* How many mappings do 200,000 live large blocks cost?
 *
 * Blocks of 33 to 256 KiB, of which only the first byte is written; then blocks chosen at random are
 * freed and replaced by others of another size. Each mapping is one line of /proc/self/maps; at
 * vm.max_map_count mmap, mprotect and even munmap begin to fail. A malloc that returns NULL is
 * counted, and its block stays away.
 */
#include "experiment.h"

enum { BLOCKS, REPLACED };

static option_t options[] = {
    {"blocks", NULL, 200000, NULL},
    {"replaced", NULL, 800000, NULL},
};

static size_t refused;

/* Lines of /proc/self/maps, counted without an allocation. */
static size_t mappings(void) {
  static char text[65536];
  int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) die("/proc/self/maps");
  size_t lines = 0;
  ssize_t got;
  while ((got = read(file, text, sizeof text)) > 0) {
    for (ssize_t i = 0; i < got; i++) lines += text[i] == '\n';
  }
  close(file);
  return lines;
}

static uint8_t *allocate(rng_t *rng) {
  uint8_t *block = malloc(rng_range(rng, 33 * KIB, 256 * KIB));
  if (block == NULL) {
    refused++;
  } else {
    *(volatile uint8_t *)block = 1;
  }
  return block;
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t count = options[BLOCKS].value, replaced = options[REPLACED].value;
  uint8_t **blocks = own_table(count * sizeof *blocks);
  rng_t rng = {33};
  char text[64];
  read_file("/proc/sys/vm/max_map_count", text, sizeof text);
  int64_t begun = now_ns();
  for (size_t i = 0; i < count; i++) blocks[i] = allocate(&rng);
  size_t filled = mappings(), most = filled, look = replaced / 16 + 1;
  for (size_t i = 1; i <= replaced; i++) {
    size_t which = rng_range(&rng, 0, count - 1);
    free(blocks[which]);
    blocks[which] = allocate(&rng);
    if (i % look == 0) {
      size_t here = mappings();
      if (here > most) most = here;
    }
  }
  metric("wall", "ms", (double)(now_ns() - begun) / 1e6);
  metric("mappings-filled", "count", (double)filled);
  metric("mappings-end", "count", (double)mappings());
  metric("mappings", "count", (double)most);
  metric("max-map-count", "count", strtod(text, NULL));
  metric("refused", "count", (double)refused);
  metric("rss", "MiB", in_mib(rss()));
  return 0;
}
