/* What stays resident after buffers of 0 to 32 MiB were freed, and what the rounds cost.
 *
 * 20 rounds of 256 buffers of (random() % 8192) * 4096 bytes, one byte written in each 4 KiB; all
 * freed after each round. The wall time is that of allocating, touching and freeing; the looks at
 * /proc between them are not in it. With --trim 1 each round ends with malloc_trim(0). With a greater
 * --stride less is resident of the same buffers, which is quicker.
 */
#include "experiment.h"
#include <malloc.h>

enum { ROUNDS, BUFFERS, IDLE_MS, TRIM, STRIDE };

static option_t options[] = {
    {"rounds", NULL, 20, NULL},
    {"buffers", NULL, 256, NULL},
    {"idle-ms", NULL, 2000, NULL},
    {"trim", NULL, 0, NULL},
    {"stride", NULL, TOUCH_STEP, NULL},
};

static void round_metric(size_t round, const char *when, size_t bytes) {
  char name[64];
  snprintf(name, sizeof name, "round-%02zu-%s", round + 1, when);
  metric(name, "MiB", in_mib(bytes));
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t buffers = options[BUFFERS].value;
  size_t stride = options[STRIDE].value < TOUCH_STEP ? TOUCH_STEP : options[STRIDE].value;
  void **blocks = own_table(buffers * sizeof *blocks);
  metric("rss-base", "MiB", in_mib(rss()));
  srandom(0);
  int64_t wall = 0;
  size_t huge = 0, worst = 0;
  for (size_t round = 0; round < options[ROUNDS].value; round++) {
    int64_t begun = now_ns();
    for (size_t i = 0; i < buffers; i++) {
      size_t size = (size_t)(random() % 8192) * 4096;
      blocks[i] = need(malloc(size));
      escape(blocks[i]);
      touch_each(blocks[i], size, stride);
    }
    wall += now_ns() - begun;
    round_metric(round, "allocated", rss());
    size_t in_huge_pages = huge_rss();
    if (in_huge_pages > huge) huge = in_huge_pages;
    begun = now_ns();
    for (size_t i = 0; i < buffers; i++) free(blocks[i]);
    if (options[TRIM].value) malloc_trim(0);
    wall += now_ns() - begun;
    size_t left = rss();
    if (left > worst) worst = left;
    round_metric(round, "freed", left);
  }
  metric("rss-at-once", "MiB", in_mib(rss()));
  idle_ms(options[IDLE_MS].value / 2);
  metric("rss-1s", "MiB", in_mib(rss()));
  metric("lazy-1s", "MiB", in_mib(lazy_rss()));
  idle_ms(options[IDLE_MS].value - options[IDLE_MS].value / 2);
  metric("rss-2s", "MiB", in_mib(rss()));
  metric("rss-freed-worst", "MiB", in_mib(worst));
  metric("peak", "MiB", in_mib(peak_rss()));
  metric("huge", "MiB", in_mib(huge));
  metric("wall", "ms", (double)wall / 1e6);
  return 0;
}
