/* What do vectors cost that grow again and again?
 *
 * In each round every thread grows `vectors` vectors, in turn, from 4 KiB to `most` KiB by a factor of
 * `percent` / 100, writes what each growth adds, checks a byte of each 4 KiB and frees them. `pause` ms
 * lie between rounds. "peak" is the most that was resident beyond what the program had before.
 */
#include "experiment.h"

#include <pthread.h>

enum { MOST, PERCENT, VECTORS, THREADS, ROUNDS, PAUSE };

static option_t options[] = {
    {"most", NULL, 2048, NULL},  {"percent", NULL, 200, NULL}, {"vectors", NULL, 1, NULL},
    {"threads", NULL, 1, NULL},  {"rounds", NULL, 330, NULL},  {"pause", NULL, 0, NULL},
};

typedef struct {
  uint8_t *bytes;
  size_t size;
} vector_t;

static void grow(vector_t *vector, size_t size, uint8_t mark) {
  vector->bytes = need(realloc(vector->bytes, size));
  memset(vector->bytes + vector->size, mark, size - vector->size);
  vector->size = size;
}

static void finish(vector_t *vector, uint8_t mark) {
  for (size_t at = 0; at < vector->size; at += TOUCH_STEP) {
    if (vector->bytes[at] != mark) {
      fprintf(stderr, "a vector was damaged at byte %zu\n", at);
      exit(4);
    }
  }
  free(vector->bytes);
  memset(vector, 0, sizeof *vector);
}

static void *work(void *argument) {
  vector_t vectors[64] = {{NULL, 0}};
  size_t count = options[VECTORS].value, most = options[MOST].value * KIB;
  uint8_t thread = (uint8_t)(size_t)argument;
  for (size_t round = 0; round < options[ROUNDS].value; round++) {
    for (size_t size = 4 * KIB; size <= most; size = size * options[PERCENT].value / 100) {
      for (size_t i = 0; i < count; i++) grow(&vectors[i], size, (uint8_t)(i + round + thread));
    }
    for (size_t i = 0; i < count; i++) finish(&vectors[i], (uint8_t)(i + round + thread));
    if (options[PAUSE].value > 0) idle_ms(options[PAUSE].value);
  }
  return NULL;
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  if (options[VECTORS].value > 64 || options[THREADS].value > 64 || options[PERCENT].value < 101) {
    usage(argv[0], options, sizeof options / sizeof *options);
  }
  pthread_t ids[64];
  free(need(malloc(1)));
  size_t base = rss();
  int64_t begun = now_ns(), processor = processor_ns();
  long faults_before = faults();
  for (size_t t = 1; t < options[THREADS].value; t++) {
    if ((errno = pthread_create(&ids[t], NULL, work, (void *)t)) != 0) die("pthread_create");
  }
  work(NULL);
  for (size_t t = 1; t < options[THREADS].value; t++) pthread_join(ids[t], NULL);
  metric("wall", "ms", (double)(now_ns() - begun) / 1e6);
  metric("cpu", "ms", (double)(processor_ns() - processor) / 1e6);
  metric("faults", "count", (double)(faults() - faults_before));
  metric("peak", "MiB", in_mib(peak_rss() - base));
  return 0;
}
