/* A random walk over memory of one kind: what huge pages are worth.
 *
 * For each power of two from 2^--low to 2^--high bytes: one pointer in each line of 64 bytes, no padding, linked into
 * one cycle in random order (Sattolo's algorithm, so no shorter cycle can come out); then the walk, for --ms in five
 * slices, of which the median is printed. Each step depends on the one before, so its time is that of one memory access
 * with its TLB miss. The time is the thread's processor time, so that other programs do not count.
 *
 * small:   4 KiB pages (MADV_NOHUGEPAGE)
 * thp:     transparent huge pages (MADV_HUGEPAGE on aligned memory)
 * mthp:    the same; the caller has set the system to give 64 KiB pages
 * file:    a file of hugetlbfs, found through the mount table
 * sysv:    System V shared memory with SHM_HUGETLB
 * mmap:    MAP_HUGETLB
 * malloc:  whatever malloc gives
 *
 * With --settle the walk goes on before it is measured, until its memory is in huge pages but for a 32nd, or for as many
 * ms for each huge page that it could have: an allocator may ask for them some time after the first touch. "reach" are the bytes that the processor's TLB
 * for data covers with pages of the kind's size, where the processor tells it and the size is certain.
 */
#include "experiment.h"
#include <sys/ipc.h>
#include <sys/shm.h>
#if defined __x86_64__
#include <cpuid.h>
#include <x86intrin.h>
#endif

enum { KIND, LOW, HIGH, STEP, WALK_MS, SETTLE };
enum { SMALL, THP, MTHP, HUGE_FILE, HUGE_SYSV, HUGE_MMAP, MALLOC };

static option_t options[] = {
    {"kind", "small thp mthp file sysv mmap malloc", SMALL, NULL},
    {"low", NULL, 10, NULL},
    {"high", NULL, 30, NULL},
    {"step", NULL, 1, NULL},
    {"ms", NULL, 50, NULL},
    {"settle", NULL, 0, NULL},
};

enum { LINE = 64, HUGE = 2 * 1024 * 1024, STEPS_AT_ONCE = 1024, SLICES = 5 };

static size_t rounded(size_t bytes) { return (bytes + HUGE - 1) / HUGE * HUGE; }

static void *anonymous(size_t bytes, int flags) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  return memory;
}

/* Memory at a multiple of 2 MiB, with the advice. */
static void *advised(size_t bytes, int advice) {
  uintptr_t at = (uintptr_t)anonymous(bytes + HUGE, 0);
  void *memory = (void *)rounded(at);
  if (madvise(memory, bytes, advice) != 0) die("madvise");
  return memory;
}

/* A file that has lost its name already, in the first hugetlbfs with pages of 2 MiB. */
static void *from_file(size_t bytes) {
  FILE *mounts = fopen("/proc/mounts", "r");
  char line[4096], place[2048], kind[64], rest[1024], path[2200];
  int file = -1;
  while (mounts != NULL && file < 0 && fgets(line, sizeof line, mounts)) {
    if (sscanf(line, "%*s %2047s %63s %1023s", place, kind, rest) != 3 || strcmp(kind, "hugetlbfs") != 0) continue;
    if (strstr(rest, "pagesize=") != NULL && strstr(rest, "pagesize=2M") == NULL) continue;
    snprintf(path, sizeof path, "%s/neap-lab-%d", place, (int)getpid());
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) unlink(path);
  }
  if (mounts != NULL) fclose(mounts);
  if (file < 0) unable("no hugetlbfs is mounted where this user may write");
  if (ftruncate(file, (off_t)bytes) != 0) die("ftruncate");
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) die("mmap of a hugetlbfs file");
  close(file);
  return memory;
}

static void *from_sysv(size_t bytes) {
  int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | SHM_HUGETLB | 0600);
  if (id < 0 && errno == EPERM) unable("needs root, or the group in vm.hugetlb_shm_group");
  if (id < 0) die("shmget");
  void *memory = shmat(id, NULL, 0);
  /* It lives until it is detached, also when this program is killed. */
  shmctl(id, IPC_RMID, NULL);
  if (memory == (void *)-1) die("shmat");
  return memory;
}

static void *obtain(size_t bytes) {
  switch (options[KIND].value) {
    case SMALL: return advised(bytes, MADV_NOHUGEPAGE);
    case THP:
    case MTHP: return advised(bytes, MADV_HUGEPAGE);
    case HUGE_FILE: return from_file(bytes);
    case HUGE_SYSV: return from_sysv(bytes);
    case HUGE_MMAP: return anonymous(bytes, MAP_HUGETLB);
    default: return need(malloc(bytes));
  }
}

static void give_up(void *memory, size_t bytes) {
  if (options[KIND].value == MALLOC) {
    free(memory);
  } else if (options[KIND].value == HUGE_SYSV) {
    shmdt(memory);
  } else {
    munmap(memory, bytes);
  }
}

typedef struct line {
  struct line *next;
  char rest[LINE - sizeof(struct line *)];
} line_t;

static void link_cycle(line_t *lines, size_t count) {
  rng_t rng = {count};
  for (size_t i = 0; i < count; i++) lines[i].next = &lines[i];
  for (size_t i = count - 1; i > 0; i--) {
    size_t other = rng_range(&rng, 0, i - 1);
    line_t *next = lines[i].next;
    lines[i].next = lines[other].next;
    lines[other].next = next;
  }
}

/* Processor time of this thread: what others do meanwhile is not in it. */
static int64_t cpu_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Walks for `us` microseconds; returns the nanoseconds of a step. */
static double walk(line_t **at, size_t us) {
  size_t steps = 0;
  int64_t begun = cpu_ns(), end = begun + (int64_t)us * 1000, now = begun;
  for (; now < end; now = cpu_ns()) {
    for (int i = 0; i < STEPS_AT_ONCE; i++) *at = (*at)->next;
    steps += STEPS_AT_ONCE;
  }
  escape(*at);
  return (double)(now - begun) / (double)steps;
}

static int by_value(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Ticks of the processor's clock in a nanosecond; 0 where it has none that programs can read. */
static double ticks_per_ns(void) {
#if defined __x86_64__
  static double known;
  if (known == 0) {
    int64_t begun = now_ns();
    uint64_t first = __rdtsc();
    while (now_ns() - begun < 5000000) {
    }
    known = (double)(__rdtsc() - first) / (double)(now_ns() - begun);
  }
  return known;
#else
  return 0;
#endif
}

/* Entries of the greatest TLB for data with pages of 4 KiB, or of 2 MiB; 0 where the processor does not tell. */
static size_t tlb_entries(int huge) {
  size_t most = 0;
#if defined __x86_64__
  unsigned eax, ebx, ecx, edx, last = 0;
  /* Intel: one subleaf for each TLB. */
  for (unsigned leaf = 0; leaf <= last && __get_cpuid_count(0x18, leaf, &eax, &ebx, &ecx, &edx); leaf++) {
    if (leaf == 0) last = eax;
    unsigned kind = edx & 31, for_data = kind == 1 || kind == 3;
    size_t entries = (size_t)(ebx >> 16) * ecx;
    if (for_data && (ebx >> huge & 1) && entries > most) most = entries;
  }
  /* AMD: the second level, else the first. */
  if (most == 0 && __get_cpuid(0x80000006, &eax, &ebx, &ecx, &edx)) most = (huge ? eax : ebx) >> 16 & 0xfff;
  if (most == 0 && __get_cpuid(0x80000005, &eax, &ebx, &ecx, &edx)) most = (huge ? eax : ebx) >> 16 & 0xff;
#endif
  return most;
}

/* What the TLB covers; 0 where the size of the pages is not that of one of its kinds. */
static size_t tlb_reach(void) {
  switch (options[KIND].value) {
    case SMALL: return tlb_entries(0) * TOUCH_STEP;
    case MTHP:
    case MALLOC: return 0;
    default: return tlb_entries(1) * HUGE;
  }
}

/* Bytes of the process in transparent huge pages. */
static size_t in_huge_pages(void) {
  static char text[4096]; /* no memory of the allocator */
  int file = open("/proc/self/smaps_rollup", O_RDONLY);
  ssize_t len = file < 0 ? 0 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  text[len > 0 ? len : 0] = 0;
  const char *line = strstr(text, "AnonHugePages:");
  return line ? strtoul(line + strlen("AnonHugePages:"), NULL, 10) * 1024 : 0;
}

static void settle(line_t **at, size_t bytes) {
  enum { AT_ONCE_MS = 100 };
  size_t most = bytes / HUGE * options[SETTLE].value;
  for (size_t ms = 0; ms < most && in_huge_pages() < bytes - bytes / 32; ms += AT_ONCE_MS) walk(at, AT_ONCE_MS * 1000);
}

static void measure(size_t bits) {
  size_t bytes = (size_t)1 << bits, held = rounded(bytes);
  line_t *lines = obtain(options[KIND].value == MALLOC ? bytes : held), *at = lines;
  link_cycle(lines, bytes / LINE);
  walk(&at, options[WALK_MS].value * 500);
  settle(&at, bytes);
  double slices[SLICES];
  for (int i = 0; i < SLICES; i++) slices[i] = walk(&at, options[WALK_MS].value * 1000 / SLICES);
  qsort(slices, SLICES, sizeof *slices, by_value);
  char name[32];
  snprintf(name, sizeof name, "ns-%02zu", bits);
  metric(name, "ns", slices[SLICES / 2]);
  if (ticks_per_ns() > 0) {
    snprintf(name, sizeof name, "cycles-%02zu", bits);
    metric(name, "cycles", slices[SLICES / 2] * ticks_per_ns());
  }
  if (bits == options[HIGH].value) metric("huge", "MiB", in_mib(huge_rss()));
  give_up(lines, held);
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t low = options[LOW].value, high = options[HIGH].value;
  if (low < 8 || high > 34 || options[STEP].value == 0) usage(argv[0], options, sizeof options / sizeof *options);
  for (size_t bits = low; bits <= high; bits += options[STEP].value) measure(bits);
  if (tlb_reach() > 0) metric("reach", "B", (double)tlb_reach());
  return 0;
}
