/* What an allocator adds to a program that hardly allocates: start, end, page faults.
 *
 * Starts --program --count times, one after the other, with nothing on its input and its output thrown away, and tells
 * the median and the least wall time from fork to exit, and its page faults and peak resident memory. Programs inherit
 * LD_PRELOAD, so the allocator is in each of them.
 */
#include "experiment.h"
#include <sys/resource.h>
#include <sys/wait.h>

enum { PROGRAM, COUNT };

static option_t options[] = {
    {"program", "", 0, "/bin/true"},
    {"count", NULL, 100, NULL},
};

enum { MOST = 100000 };

typedef struct {
  int64_t wall;
  struct rusage usage;
} start_t;

static int by_value(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

/* With vfork the kernel counts this program's own peak as the child's, with fork only the little that was copied. */
static start_t start(const char *program, int nothing, int by_fork) {
  start_t one = {now_ns(), {.ru_maxrss = 0}};
  pid_t child = by_fork ? fork() : vfork();
  if (child < 0) die(by_fork ? "fork" : "vfork");
  if (child == 0) {
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    execl(program, program, (char *)NULL);
    _exit(127);
  }
  int status = 0;
  while (wait4(child, &status, 0, &one.usage) < 0 && errno == EINTR) {
  }
  one.wall = now_ns() - one.wall;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fprintf(stderr, "%s ended with status %d\n", program, status);
    exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : 6);
  }
  return one;
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, sizeof options / sizeof *options);
  size_t count = options[COUNT].value;
  if (count < 1 || count > MOST) usage(argv[0], options, sizeof options / sizeof *options);
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  int64_t *walls = own_table(count * sizeof *walls), *faults = own_table(count * sizeof *faults);
  int64_t *peaks = own_table(count * sizeof *peaks);
  for (int i = 0; i < 3; i++) start(options[PROGRAM].text, nothing, 0);
  for (size_t i = 0; i < count; i++) {
    start_t one = start(options[PROGRAM].text, nothing, 0);
    walls[i] = one.wall;
    faults[i] = one.usage.ru_minflt + one.usage.ru_majflt;
  }
  for (size_t i = 0; i < count; i++) peaks[i] = start(options[PROGRAM].text, nothing, 1).usage.ru_maxrss;
  qsort(walls, count, sizeof *walls, by_value);
  qsort(faults, count, sizeof *faults, by_value);
  qsort(peaks, count, sizeof *peaks, by_value);
  metric("wall", "us", (double)walls[count / 2] / 1e3);
  metric("wall-min", "us", (double)walls[0] / 1e3);
  metric("faults", "count", (double)faults[count / 2]);
  metric("peak", "MiB", (double)peaks[count / 2] / 1024);
  return 0;
}
