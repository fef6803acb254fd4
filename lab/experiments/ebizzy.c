/* Threads that allocate a chunk, copy into it, search it, free it: after the benchmark ebizzy.
 *
 * Chunks of 64 to 256 KiB are just large enough that an allocator which gives each one back on free
 * pays a system call, page faults and TLB shootdowns for every iteration; the more threads, the more
 * other processors must be interrupted.
 *
 * Prints "frees" for the count of system calls per free, which the driver takes in a run of its own.
 *
 * With --phases the threads work as often for `ms` and rest for `pause` ms between; rates and costs are those of the
 * work alone. The figures of pauses are printed only then: "rss-pause" is the most at the end of one, "rss-idle" that
 * 1 s after the last phase, both beyond what the program had before.
 */
#include "experiment.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS, MS, PHASES, PAUSE };

static option_t options[] = {
    {"threads", NULL, 1, NULL},
    {"ms", NULL, 3000, NULL},
    {"phases", NULL, 1, NULL},
    {"pause", NULL, 0, NULL},
};

enum { LEAST = 64 * 1024, MOST = 256 * 1024, MAX_THREADS = 256 };

static uint32_t source[MOST / sizeof(uint32_t)];
static atomic_int stop;
/* All threads and the main one meet here before and after each phase. */
static pthread_barrier_t ready;

typedef struct {
  _Alignas(64) size_t iterations;
  uint64_t found;
  size_t number;
} thread_t;

static thread_t threads[MAX_THREADS];

/* Binary search; the source is sorted, and so is each copy of its beginning. */
static size_t search(const uint32_t *words, size_t count, uint32_t key) {
  size_t low = 0;
  while (count > 1) {
    size_t half = count / 2;
    if (words[low + half] <= key) low += half;
    count -= half;
  }
  return low;
}

static void work(thread_t *thread, rng_t *rng) {
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    size_t count = rng_range(rng, LEAST, MOST) / sizeof(uint32_t);
    uint32_t *chunk = need(malloc(count * sizeof *chunk));
    memcpy(chunk, source, count * sizeof *chunk);
    escape(chunk);
    uint32_t key = (uint32_t)rng_range(rng, 0, count - 1) * 3;
    size_t at = search(chunk, count, key);
    if (chunk[at] != key) {
      fprintf(stderr, "the chunk does not hold %u\n", key);
      exit(4);
    }
    thread->found += at;
    free(chunk);
    thread->iterations++;
  }
}

static void *body(void *argument) {
  thread_t *thread = argument;
  rng_t rng = {thread->number + 1};
  for (size_t phase = 0; phase < options[PHASES].value; phase++) {
    pthread_barrier_wait(&ready);
    work(thread, &rng);
    pthread_barrier_wait(&ready);
  }
  return NULL;
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t count = options[THREADS].value, phases = options[PHASES].value;
  if (count < 1 || count > MAX_THREADS || phases < 1) usage(argv[0], options, sizeof options / sizeof *options);
  for (size_t i = 0; i < MOST / sizeof(uint32_t); i++) source[i] = (uint32_t)i * 3;
  pthread_barrier_init(&ready, NULL, (unsigned)count + 1);
  pthread_t ids[MAX_THREADS];
  for (size_t i = 0; i < count; i++) {
    threads[i].number = i;
    if (pthread_create(&ids[i], NULL, body, &threads[i]) != 0) die("pthread_create");
  }
  size_t base = rss(), kept = base;
  int64_t wall = 0, cpu = 0;
  long fault = 0;
  for (size_t phase = 0; phase < phases; phase++) {
    if (phase > 0) {
      idle_ms(options[PAUSE].value);
      if (rss() > kept) kept = rss();
    }
    atomic_store(&stop, 0);
    pthread_barrier_wait(&ready);
    long before = faults();
    int64_t begun = now_ns(), processor = processor_ns();
    idle_ms(options[MS].value);
    atomic_store(&stop, 1);
    wall += now_ns() - begun;
    pthread_barrier_wait(&ready);
    cpu += processor_ns() - processor;
    fault += faults() - before;
  }
  size_t at_once = rss(), iterations = 0;
  for (size_t i = 0; i < count; i++) {
    pthread_join(ids[i], NULL);
    iterations += threads[i].iterations;
  }
  metric("rate", "1/s", (double)iterations * 1e9 / (double)wall);
  metric("frees", "count", (double)iterations);
  metric("rss", "MiB", in_mib(at_once));
  metric("faults-per-1000-frees", "count", (double)fault * 1000 / (double)iterations);
  if (phases == 1) return 0;
  metric("wall", "ms", (double)wall / 1e3 / (double)iterations);
  metric("cpu", "ms", (double)cpu / 1e3 / (double)iterations);
  metric("faults", "count", (double)fault * 1000 / (double)iterations);
  metric("rss-pause", "MiB", in_mib(kept) - in_mib(base));
  idle_ms(1000);
  metric("rss-idle", "MiB", in_mib(rss()) - in_mib(base));
  return 0;
}
