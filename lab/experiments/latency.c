/* The tail of malloc and free while much memory is being purged.
 *
 * Two threads allocate a burst, touch it, free it, and then idle for longer than an allocator lets
 * free memory wait, so that much of it is given back again and again: one with small blocks, one
 * with large ones. Meanwhile the main thread replaces small and large blocks steadily, and each of
 * its calls is timed. The bursts' own calls are timed too: their worst call is one that a program
 * would notice.
 *
 * Blocks are touched outside the timed part. A call during which the thread was taken off its
 * processor against its will (an involuntary context switch, counted by the kernel) says nothing
 * about the allocator: "undisturbed" figures leave such calls out where they were long enough to
 * matter.
 */
#include "experiment.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { MS, GAP_MS, SMALL_MIB, LARGE_MIB };

static option_t options[] = {
    {"ms", NULL, 10000, NULL},
    {"gap-ms", NULL, 1200, NULL},
    {"small-mib", NULL, 64, NULL},
    {"large-mib", NULL, 256, NULL},
};

/* A histogram of nanoseconds: 32 buckets for each power of two. */
enum { STEPS = 32, BUCKETS = 60 * STEPS };

typedef struct {
  uint64_t buckets[BUCKETS];
  uint64_t count;
  int64_t max, max_undisturbed;
} histogram_t;

static size_t bucket_of(uint64_t ns) {
  if (ns < 2 * STEPS) return (size_t)ns;
  unsigned shift = 63 - (unsigned)__builtin_clzll(ns) - 5;
  return shift * STEPS + (size_t)(ns >> shift);
}

/* The least value that falls into a bucket. */
static uint64_t value_of(size_t bucket) {
  if (bucket < 2 * STEPS) return bucket;
  size_t shift = bucket / STEPS - 1;
  return (uint64_t)(bucket % STEPS + STEPS) << shift;
}

static uint64_t quantile(const histogram_t *histogram, double part) {
  uint64_t wanted = (uint64_t)((double)histogram->count * part), seen = 0;
  for (size_t i = 0; i < BUCKETS; i++) {
    seen += histogram->buckets[i];
    if (seen > wanted) return value_of(i);
  }
  return (uint64_t)histogram->max;
}

/* Calls at least this long are looked at for a context switch. */
enum { LONG_NS = 20000 };

/* What a thread knows of its own context switches: their number when it last looked, and the calls
 * since. */
static _Thread_local struct {
  long switches;
  unsigned calls;
} watch;

static long involuntary_switches(void) {
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

/* Adds one call. The switches are read every 32 calls too, so that a long call is not blamed on a
 * switch that came long before it. */
static void add(histogram_t *histogram, int64_t ns) {
  histogram->buckets[bucket_of((uint64_t)ns)]++;
  histogram->count++;
  if (ns > histogram->max) histogram->max = ns;
  if (ns < LONG_NS) {
    if (ns > histogram->max_undisturbed) histogram->max_undisturbed = ns;
    if (++watch.calls % 32 == 0) watch.switches = involuntary_switches();
    return;
  }
  long now = involuntary_switches();
  if (now == watch.switches && ns > histogram->max_undisturbed) histogram->max_undisturbed = ns;
  watch.switches = now;
}

/* The calls of one thread on one kind of blocks. */
typedef struct {
  const char *name;
  size_t least, most;
  histogram_t allocate, release;
  rng_t rng;
} kind_t;

static kind_t steady_small = {.name = "steady-small", .least = 16, .most = 2048, .rng = {1}};
static kind_t steady_large = {.name = "steady-large", .least = 32 * 1024, .most = 1024 * 1024, .rng = {2}};
static kind_t burst_small = {.name = "burst-small", .least = 16, .most = 2048, .rng = {3}};
static kind_t burst_large = {.name = "burst-large", .least = 64 * 1024, .most = 4096 * 1024, .rng = {4}};
static atomic_int stop;

static void *timed_malloc(kind_t *kind, size_t size) {
  int64_t begun = now_ns();
  void *block = malloc(size);
  int64_t ns = now_ns() - begun;
  add(&kind->allocate, ns);
  escape(need(block));
  return block;
}

static void timed_free(kind_t *kind, void *block) {
  int64_t begun = now_ns();
  free(block);
  int64_t ns = now_ns() - begun;
  add(&kind->release, ns);
}

/* Allocates `bytes`, frees them, idles; until the end. */
static void bursts(kind_t *kind, size_t bytes) {
  size_t room = bytes / (kind->least + kind->most) * 4 + 16, idle = 0;
  void **blocks = own_table(room * sizeof *blocks);
  while (!atomic_load(&stop)) {
    size_t count = 0;
    for (size_t live = 0; live < bytes && count < room; count++) {
      size_t size = rng_range(&kind->rng, kind->least, kind->most);
      blocks[count] = timed_malloc(kind, size);
      touch(blocks[count], size);
      live += size;
    }
    for (size_t i = 0; i < count; i++) timed_free(kind, blocks[i]);
    for (idle = 0; idle < options[GAP_MS].value && !atomic_load(&stop); idle += 50) idle_ms(50);
  }
}

static void *small_bursts(void *unused) {
  bursts(&burst_small, options[SMALL_MIB].value * MIB);
  return unused;
}

static void *large_bursts(void *unused) {
  bursts(&burst_large, options[LARGE_MIB].value * MIB);
  return unused;
}

/* Replaces one block of a window. */
static void replace(kind_t *kind, void **window, size_t room) {
  void **slot = &window[rng_range(&kind->rng, 0, room - 1)];
  timed_free(kind, *slot);
  size_t size = rng_range(&kind->rng, kind->least, kind->most);
  *slot = timed_malloc(kind, size);
  touch(*slot, size);
}

static void steady(void) {
  enum { SMALL = 4096, LARGE = 64 };
  void **small = own_table(SMALL * sizeof *small), **large = own_table(LARGE * sizeof *large);
  for (size_t i = 0; i < SMALL; i++) small[i] = need(malloc(64));
  for (size_t i = 0; i < LARGE; i++) large[i] = need(malloc(64 * KIB));
  int64_t end = now_ns() + (int64_t)options[MS].value * 1000000;
  while (now_ns() < end) {
    for (int i = 0; i < 64; i++) replace(&steady_small, small, SMALL);
    replace(&steady_large, large, LARGE);
  }
  for (size_t i = 0; i < SMALL; i++) free(small[i]);
  for (size_t i = 0; i < LARGE; i++) free(large[i]);
}

static void merge(histogram_t *all, const histogram_t *histogram) {
  for (size_t i = 0; i < BUCKETS; i++) all->buckets[i] += histogram->buckets[i];
  all->count += histogram->count;
  if (histogram->max > all->max) all->max = histogram->max;
  if (histogram->max_undisturbed > all->max_undisturbed) all->max_undisturbed = histogram->max_undisturbed;
}

static void print_histogram(const char *kind, const char *call, const histogram_t *histogram) {
  const struct {
    const char *name;
    double ns;
  } figures[] = {
      {"p50", (double)quantile(histogram, 0.5)},
      {"p99", (double)quantile(histogram, 0.99)},
      {"p99.99", (double)quantile(histogram, 0.9999)},
      {"max", (double)histogram->max},
      {"max-undisturbed", (double)histogram->max_undisturbed},
  };
  char name[96];
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
    snprintf(name, sizeof name, "%s-%s-%s", kind, call, figures[i].name);
    metric(name, "us", figures[i].ns / 1e3);
  }
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  pthread_t ids[2];
  if (pthread_create(&ids[0], NULL, small_bursts, NULL) != 0) die("pthread_create");
  if (pthread_create(&ids[1], NULL, large_bursts, NULL) != 0) die("pthread_create");
  steady();
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
  const kind_t *kinds[] = {&steady_small, &steady_large, &burst_small, &burst_large};
  static histogram_t steady_calls, all_calls;
  for (size_t i = 0; i < 4; i++) {
    print_histogram(kinds[i]->name, "malloc", &kinds[i]->allocate);
    print_histogram(kinds[i]->name, "free", &kinds[i]->release);
    merge(&all_calls, &kinds[i]->allocate);
    merge(&all_calls, &kinds[i]->release);
    if (i < 2) merge(&steady_calls, &kinds[i]->allocate);
    if (i < 2) merge(&steady_calls, &kinds[i]->release);
  }
  print_histogram("steady", "all", &steady_calls);
  print_histogram("every", "call", &all_calls);
  metric("worst-undisturbed", "us", (double)all_calls.max_undisturbed / 1e3);
  metric("calls", "count", (double)(steady_small.allocate.count + steady_large.allocate.count));
  return 0;
}
