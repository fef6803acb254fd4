// What `neap profile --time` must find: each function does one thing, for some tens of milliseconds. Ends with status
// 3.
#include <stdlib.h>
#include <string.h>
#include <map>
#include <string>
#include <vector>

#define OWN __attribute__((noinline))

static void *volatile sink;
static size_t scale = 1;

// Blocks that malloc keeps, so that calloc must clear them; glibc's calloc ends in a tail call of memset.
OWN static void clears() {
  void *first = malloc(64 << 10);
  memset(first, 1, 64 << 10);
  for (size_t i = 0; i < scale * 60000; i++) {
    free(first);
    first = calloc(64 << 10, 1);
    sink = first;
  }
  free(first);
}

OWN static void touches() {
  // Larger than what glibc keeps after a free.
  for (size_t i = 0; i < scale * 4; i++) {
    char *block = static_cast<char *>(malloc(48 << 20));
    for (size_t at = 0; at < 48 << 20; at += 4096) block[at] = 1;
    sink = block;
    free(block);
  }
}

OWN static void small_blocks() {
  for (size_t round = 0; round < scale * 60; round++) {
    std::vector<void *> blocks;
    for (size_t i = 0; i < 40000; i++) blocks.push_back(malloc(16 + i % 900));
    // Stays live, so that the C library keeps the memory below it for the next round.
    if (round == 0) sink = malloc(16);
    for (void *block : blocks) free(block);
  }
}

// No allocation: not in the profile.
OWN static long busy() {
  volatile long sum = 0;
  for (long i = 0; i < 200000000; i++) sum = sum + i;
  return sum;
}

int main(int argc, char **argv) {
  if (argc > 1) scale = strtoul(argv[1], nullptr, 10);
  clears();
  touches();
  small_blocks();
  busy();
  return 3;
}
