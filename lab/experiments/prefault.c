/* Ways to make memory resident before it is used, and what each costs.
 *
 * A block of --mib MiB, of which the program then writes one byte in each 4 KiB of the first --used percent.
 *
 * touch:  nothing beforehand; each page is a fault of its own
 * part:   MADV_POPULATE_WRITE over the part that will be used
 * whole:  MADV_POPULATE_WRITE over all of it
 * read:   MADV_POPULATE_READ over the part: maps the zero page, so the writes fault again
 * map:    not from malloc but from mmap with MAP_POPULATE: always all of it
 */
#include "experiment.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { METHOD, SIZE_MIB, USED };
enum { TOUCH, PART, WHOLE, READ, MAP };

static option_t options[] = {
    {"method", "touch part whole read map", TOUCH, NULL},
    {"mib", NULL, 256, NULL},
    {"used", NULL, 100, NULL},
};

/* Applies an advice to the whole OS pages inside of [block, block + bytes). */
static void advise(uint8_t *block, size_t bytes, int advice) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t first = ((uintptr_t)block + page - 1) / page * page, end = ((uintptr_t)block + bytes) / page * page;
  if (end <= first || madvise((void *)first, end - first, advice) == 0) return;
  if (errno == EINVAL) unable("needs Linux 5.14, for MADV_POPULATE_WRITE");
  die("madvise");
}

static uint8_t *prepare(size_t bytes, size_t used) {
  if (options[METHOD].value == MAP) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    return memory;
  }
  uint8_t *block = need(malloc(bytes));
  escape(block);
  if (options[METHOD].value == PART) advise(block, used, MADV_POPULATE_WRITE);
  if (options[METHOD].value == WHOLE) advise(block, bytes, MADV_POPULATE_WRITE);
  if (options[METHOD].value == READ) advise(block, used, MADV_POPULATE_READ);
  return block;
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t bytes = options[SIZE_MIB].value * MIB, used = bytes / 100 * options[USED].value;
  size_t base = rss();
  long before = faults();
  int64_t begun = now_ns();
  uint8_t *block = prepare(bytes, used);
  int64_t prepared = now_ns();
  touch(block, used);
  int64_t end = now_ns();
  long after = faults();
  metric("prepare", "ms", (double)(prepared - begun) / 1e6);
  metric("use", "ms", (double)(end - prepared) / 1e6);
  metric("total", "ms", (double)(end - begun) / 1e6);
  metric("faults", "count", (double)(after - before));
  metric("rss", "MiB", in_mib(rss()) - in_mib(base));
  metric("used", "MiB", in_mib(used));
  return 0;
}
