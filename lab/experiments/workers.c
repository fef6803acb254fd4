/* Worker processes that share one memory cgroup: each peaks in turn, frees, and idles.
 *
 * This process only tells the workers when to peak. A worker allocates --mib, half in small blocks
 * and half in large ones, writes to all of it, holds it for a moment and frees it; then the next one
 * peaks, --gap-ms later. With a limit of 1.5 times one worker's peak, the memory that idle workers
 * keep decides whether the busy one fits.
 *
 * Workers put themselves into --cgroup (a folder of the memory controller, made and removed by the
 * caller) before they become what they are, so that every page of theirs counts. Without it nothing
 * limits them: so one learns what the peak is.
 */
#include "experiment.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { WORKERS, MIBS, TURNS, GAP_MS, CGROUP, ROLE, NUMBER };
enum { PARENT, WORKER };

static option_t options[] = {
    {"workers", NULL, 4, NULL}, {"mib", NULL, 256, NULL},   {"turns", NULL, 2, NULL},
    {"gap-ms", NULL, 1500, NULL}, {"cgroup", "", 0, NULL}, {"role", "parent worker", PARENT, NULL},
    {"number", NULL, 0, NULL},
};
enum { OPTIONS = sizeof options / sizeof *options, MAX_WORKERS = 64, HOLD_MS = 50 };

/* Allocates until `bytes` are live; returns the new number of blocks. */
static size_t fill(void **blocks, size_t count, size_t bytes, size_t least, size_t most, rng_t *rng) {
  for (size_t live = 0; live < bytes; count++) {
    size_t size = rng_range(rng, least, most);
    blocks[count] = need(malloc(size));
    touch(blocks[count], size);
    live += size;
  }
  return count;
}

/* Peaks each time a byte arrives on stdin, and answers with a byte once all is freed. */
static int work(void) {
  size_t bytes = options[MIBS].value * MIB;
  void **blocks = own_table((bytes / 64 + 64) * sizeof *blocks / 2);
  /* Each worker has sizes of its own, and the same in each run. */
  rng_t rng = {options[NUMBER].value};
  char order;
  while (read(STDIN_FILENO, &order, 1) == 1) {
    size_t count = fill(blocks, 0, bytes / 2, 64, 1024, &rng);
    count = fill(blocks, count, bytes / 2, 64 * KIB, 4 * MIB, &rng);
    idle_ms(HOLD_MS);
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    if (write(STDOUT_FILENO, &order, 1) != 1) return 3;
  }
  return 0;
}

typedef struct {
  pid_t pid;
  int orders, answers, alive;
} worker_t;

static worker_t workers[MAX_WORKERS];

/* In the child: joins the cgroup and becomes a worker. */
static void become_worker(char *program, size_t own, int orders, int answers) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (options[CGROUP].text != NULL) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", options[CGROUP].text);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, "0", 1) != 1) die(path);
  }
  dup2(orders, STDIN_FILENO);
  dup2(answers, STDOUT_FILENO);
  char mib[32], number[32];
  snprintf(mib, sizeof mib, "%zu", options[MIBS].value);
  snprintf(number, sizeof number, "%zu", own);
  execl("/proc/self/exe", program, "--role", "worker", "--mib", mib, "--number", number, (char *)NULL);
  die("exec");
}

static void start_worker(worker_t *worker, char *program) {
  int orders[2], answers[2];
  if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) die("pipe");
  worker->pid = fork();
  if (worker->pid < 0) die("fork");
  if (worker->pid == 0) become_worker(program, (size_t)(worker - workers), orders[0], answers[1]);
  close(orders[0]);
  close(answers[1]);
  worker->orders = orders[1];
  worker->answers = answers[0];
  worker->alive = 1;
}

/* Lets one worker peak; 0 where it died over it. */
static int peak(worker_t *worker) {
  char byte = 'p';
  return write(worker->orders, &byte, 1) == 1 && read(worker->answers, &byte, 1) == 1;
}

static size_t memory_of(const worker_t *worker, const char *key) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/status", worker->pid);
  return field_bytes(path, key);
}

/* Ends a worker and tells how it ended: 1 where something killed it before. */
static int end_worker(worker_t *worker) {
  close(worker->orders);
  int status = 0;
  waitpid(worker->pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    fprintf(stderr, "a worker ended with status %d\n", WEXITSTATUS(status));
    exit(WEXITSTATUS(status));
  }
  return WIFSIGNALED(status);
}

int main(int argc, char **argv) {
  parse_options(argc, argv, options, OPTIONS);
  if (options[ROLE].value == WORKER) return work();
  size_t count = options[WORKERS].value, worst_idle = 0, most = 0, killed = 0;
  if (count < 1 || count > MAX_WORKERS) usage(argv[0], options, OPTIONS);
  signal(SIGPIPE, SIG_IGN);
  for (size_t i = 0; i < count; i++) start_worker(&workers[i], argv[0]);
  for (size_t turn = 0; turn < options[TURNS].value; turn++) {
    for (size_t i = 0; i < count; i++) {
      if (!workers[i].alive) continue;
      workers[i].alive = peak(&workers[i]);
      idle_ms(options[GAP_MS].value);
      size_t idle = memory_of(&workers[i], "VmRSS:"), peak = memory_of(&workers[i], "VmHWM:");
      if (idle > worst_idle) worst_idle = idle;
      if (peak > most) most = peak;
    }
  }
  for (size_t i = 0; i < count; i++) killed += (size_t)end_worker(&workers[i]);
  metric("killed", "count", (double)killed);
  metric("peak", "MiB", in_mib(most));
  metric("idle-rss", "MiB", in_mib(worst_idle));
  return 0;
}
