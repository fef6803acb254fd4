// Runs a command under a filter that refuses perf_event_open, as containers do.
#include "filter.h"

int main(int argc, char **argv) {
    if (argc < 2) SKIP("no command");
    filter(all_but(SYS_perf_event_open, SECCOMP_RET_ERRNO | EPERM));
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
