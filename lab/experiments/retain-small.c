/* What stays resident after three buffers of some 30 MiB each, that grow from round to round.
 *
 * For k in 28..=32: three buffers of (k + i) MiB less (random() % 16) * 4096 bytes, touched and
 * freed. "peak-ratio" is the most that the rounds added to the program's resident memory, against
 * the most bytes that were live. With --trim 1 each round ends with malloc_trim(0).
 */
#include "experiment.h"
#include <malloc.h>

enum { IDLE_MS, TRIM };

static option_t options[] = {
    {"idle-ms", NULL, 1000, NULL},
    {"trim", NULL, 0, NULL},
};

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t base = rss(), worst = 0, most_live = 0;
  srandom(0);
  for (size_t k = 28; k <= 32; k++) {
    void *blocks[3];
    size_t live = 0;
    for (size_t i = 0; i < 3; i++) {
      size_t size = (k + i) * MIB - (size_t)(random() % 16) * 4096;
      blocks[i] = need(malloc(size));
      escape(blocks[i]);
      touch(blocks[i], size);
      live += size;
    }
    if (live > most_live) most_live = live;
    for (size_t i = 0; i < 3; i++) free(blocks[i]);
    if (options[TRIM].value) malloc_trim(0);
    size_t left = rss();
    if (left > worst) worst = left;
    char name[32];
    snprintf(name, sizeof name, "round-%02zu-freed", k - 27);
    metric(name, "MiB", in_mib(left));
  }
  /* Read at the end: the buffers of the last round were the greatest. */
  size_t peak = peak_rss();
  metric("rss-base", "MiB", in_mib(base));
  metric("rss-at-once", "MiB", in_mib(rss()));
  idle_ms(options[IDLE_MS].value);
  metric("rss-1s", "MiB", in_mib(rss()));
  metric("lazy-1s", "MiB", in_mib(lazy_rss()));
  metric("rss-freed-worst", "MiB", in_mib(worst));
  metric("peak", "MiB", in_mib(peak));
  metric("live", "MiB", in_mib(most_live));
  metric("peak-ratio", "ratio", (double)(peak - base) / (double)most_live);
  return 0;
}
