/* Ends in one of several ways, with blocks that were never freed. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) {
    (void)number;
    exit(0);
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    char *volatile kept = malloc(3 << 20);
    memset(kept, 1, 3 << 20);
    if (!strcmp(way, "fork")) {
        for (int i = 0; i < 2; i++) {
            if (fork() == 0) exit(0);
        }
        while (wait(NULL) > 0) {}
    } else if (!strcmp(way, "_exit")) {
        _exit(0);
    } else if (!strcmp(way, "abort")) {
        kill(getpid(), SIGKILL);
    } else if (!strcmp(way, "handler")) {
        signal(SIGUSR1, leave);
        raise(SIGUSR1);
    } else if (!strcmp(way, "closed")) {
        /* The number of standard error is that of a file of the program's from here on. */
        close(STDERR_FILENO);
        if (open(argv[2], O_WRONLY | O_CREAT, 0600) != STDERR_FILENO) return 1;
    } else if (!strcmp(way, "all")) {
        for (int file = 3; file < 1024; file++) close(file);
        while (open(argv[2], O_WRONLY | O_CREAT, 0600) < 300) {}
    } else if (!strcmp(way, "moves")) {
        chdir("/");
        if (write(STDOUT_FILENO, "there\n", 6) != 6) return 1;
    }
    return 0;
}
