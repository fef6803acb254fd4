/* Starts one measured program and tells what it cost.
 *
 *   launch SECONDS VAR=VALUE... -- PROGRAM ARGS...
 *
 * Sets the variables for the program only, lets it run for at most SECONDS, and prints a line:
 *
 *   STATUS WALL_NS USER_US SYS_US PEAK_RSS_KIB MINOR_FAULTS MAJOR_FAULTS CHECKSUM
 *
 * STATUS is "ok", "exit:N", "signal:N", "timeout" or "interrupted"; CHECKSUM is what the program printed after
 * "checksum ", or "-". What the program printed follows, as it was.
 *
 * SIGTERM, or the end of the process that started it, ends the program and all that it started (its process group); the
 * status is then "interrupted".
 *
 * It is a program of its own because the kernel starts a child's peak RSS at the size of the parent
 * that it was forked from: a small parent keeps the figure honest.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void fail(const char *what) {
  fprintf(stderr, "launch: %s: %s\n", what, strerror(errno));
  exit(125);
}

/* Some allocators fill the memory of the machine: then this program is to die, and nothing else. */
static void expendable(void) {
  FILE *file = fopen("/proc/self/oom_score_adj", "w");
  if (file == NULL) return;
  fputs("1000", file);
  fclose(file);
}

static pid_t start(char **variables, char **program, int output) {
  pid_t child = fork();
  if (child < 0) fail("fork");
  if (child > 0) return child;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  expendable();
  dup2(output, STDOUT_FILENO);
  for (; *variables; variables++) putenv(*variables);
  execv(program[0], program);
  fail(program[0]);
  return 0;
}

enum { ENDED, TIMED_OUT, INTERRUPTED };

/* Waits for the child's end, for the deadline, or for SIGTERM: in the latter two kills its process group. */
static int wait_child(pid_t child, const sigset_t *set, int seconds, int *status, struct rusage *usage) {
  int64_t deadline = now_ns() + (int64_t)seconds * 1000000000;
  int how = ENDED;
  while (how == ENDED && wait4(child, status, WNOHANG, usage) == 0) {
    int64_t left = deadline - now_ns();
    struct timespec limit = {left / 1000000000, left % 1000000000};
    int number = left > 0 ? sigtimedwait(set, NULL, &limit) : -1;
    if (number == SIGTERM) how = INTERRUPTED;
    if (left <= 0) how = TIMED_OUT;
  }
  if (how != ENDED) {
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    if (wait4(child, status, 0, usage) < 0) fail("wait4");
  }
  /* What the program started and left behind goes with it. */
  kill(-child, SIGKILL);
  return how;
}

static void read_checksum(FILE *output, char *text, size_t room) {
  char line[256];
  snprintf(text, room, "-");
  rewind(output);
  while (fgets(line, sizeof line, output)) {
    if (sscanf(line, "checksum %31s", line) == 1) snprintf(text, room, "%.31s", line);
  }
}

static void copy_output(FILE *output) {
  char text[4096];
  size_t length;
  rewind(output);
  while ((length = fread(text, 1, sizeof text, output)) > 0) fwrite(text, 1, length, stdout);
}

int main(int argc, char **argv) {
  int split = 2;
  while (split < argc && strcmp(argv[split], "--") != 0) split++;
  if (split + 1 >= argc) {
    fputs("usage: launch SECONDS VAR=VALUE... -- PROGRAM ARGS...\n", stderr);
    return 125;
  }
  argv[split] = NULL;
  FILE *output = tmpfile();
  if (output == NULL) fail("tmpfile");
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);

  int status = 0;
  struct rusage usage;
  int64_t begun = now_ns();
  pid_t child = start(argv + 2, argv + split + 1, fileno(output));
  int how = wait_child(child, &set, atoi(argv[1]), &status, &usage);
  int64_t wall = now_ns() - begun;

  char outcome[32] = "ok", checksum[32];
  if (how != ENDED) {
    snprintf(outcome, sizeof outcome, how == TIMED_OUT ? "timeout" : "interrupted");
  } else if (WIFSIGNALED(status)) {
    snprintf(outcome, sizeof outcome, "signal:%d", WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    snprintf(outcome, sizeof outcome, "exit:%d", WEXITSTATUS(status));
  }
  read_checksum(output, checksum, sizeof checksum);
  printf("%s %lld %lld %lld %ld %ld %ld %s\n", outcome, (long long)wall,
         usage.ru_utime.tv_sec * 1000000LL + usage.ru_utime.tv_usec,
         usage.ru_stime.tv_sec * 1000000LL + usage.ru_stime.tv_usec, usage.ru_maxrss,
         usage.ru_minflt, usage.ru_majflt, checksum);
  copy_output(output);
  return 0;
}
