/* Counts the instructions that a program executes in user mode, one processor trap for each.
 *
 *   step VAR=VALUE... -- PROGRAM ARGS...
 *
 * Prints "Collected : N" as callgrind does. It stands in for callgrind where a program does not
 * start under valgrind: no address space is taken away and no library is replaced. Some hundred
 * times slower than callgrind, so the counts of operations are smaller. Both count a `rep stosb`
 * once per repetition.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
  fprintf(stderr, "step: %s: %s\n", what, strerror(errno));
  exit(125);
}

static pid_t start(char **variables, char **program) {
  pid_t child = fork();
  if (child < 0) fail("fork");
  if (child > 0) return child;
  for (; *variables; variables++) putenv(*variables);
  ptrace(PTRACE_TRACEME, 0, NULL, NULL);
  raise(SIGSTOP);
  execv(program[0], program);
  fail(program[0]);
  return 0;
}

/* The signal to hand on to a stopped thread: none for the stops that stepping itself makes. */
static int pending_signal(int status) {
  int signal = WSTOPSIG(status);
  int ours = signal == SIGTRAP || signal == SIGSTOP || (status >> 16) != 0;
  return ours ? 0 : signal;
}

int main(int argc, char **argv) {
  int split = 1;
  while (split < argc && strcmp(argv[split], "--") != 0) split++;
  if (split + 1 >= argc) {
    fputs("usage: step VAR=VALUE... -- PROGRAM ARGS...\n", stderr);
    return 125;
  }
  argv[split] = NULL;
  pid_t child = start(argv + 1, argv + split + 1);
  int status;
  if (waitpid(child, &status, 0) < 0) fail("waitpid");
  if (ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) < 0) {
    fail("ptrace (a container may forbid it)");
  }
  if (ptrace(PTRACE_CONT, child, NULL, NULL) < 0) fail("ptrace");

  unsigned long long steps = 0;
  pid_t thread;
  while ((thread = waitpid(-1, &status, __WALL)) > 0) {
    if (!WIFSTOPPED(status)) {
      if (thread != child) continue;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
      fprintf(stderr, "step: the program failed (wait status %d)\n", status);
      return 1;
    }
    if (WSTOPSIG(status) == SIGTRAP && (status >> 16) == 0) steps++;
    ptrace(PTRACE_SINGLESTEP, thread, NULL, (void *)(long)pending_signal(status));
  }
  fprintf(stderr, "Collected : %llu\n", steps);
  return 0;
}
