/* Runs a program and counts the threads that it starts, including those that the C library does not know: traced
   PROGRAM... */
#include "check.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    CHECK(argc > 1);
    pid_t first = fork();
    if (first == 0) {
        CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        raise(SIGSTOP);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    int status, started = 0;
    CHECK(waitpid(first, &status, 0) == first);
    if (!WIFSTOPPED(status)) SKIP("ptrace is refused");
    CHECK(ptrace(PTRACE_SETOPTIONS, first, 0, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) == 0);
    CHECK(ptrace(PTRACE_CONT, first, 0, 0) == 0);
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (pid == first && WIFEXITED(status)) {
            CHECK_AT(WEXITSTATUS(status) == 0, WEXITSTATUS(status));
            break;
        }
        if (!WIFSTOPPED(status)) continue;
        int sig = WSTOPSIG(status);
        started += status >> 8 == (SIGTRAP | PTRACE_EVENT_CLONE << 8);
        ptrace(PTRACE_CONT, pid, 0, sig == SIGTRAP || sig == SIGSTOP ? 0 : sig);
    }
    printf("threads %d\nok\n", started);
    return 0;
}
