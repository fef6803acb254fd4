/* Ends in one of several ways, with blocks that were never freed. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) {
    (void)number;
    exit(0);
}

static void *works(void *unused) {
    for (size_t size = 100000;; size = size * 7 % 1000003) free(malloc(size));
    return unused;
}
/* Children without fork handlers, beside threads that sometimes hold locks of the allocator. */
static void bare(void) {
    enum { THREADS = 3, CHILDREN = 300 };
    pthread_t thread;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, works, NULL)) exit(1);
    for (int i = 0; i < CHILDREN; i++) {
        int status = -1;
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            /* A child that hangs is killed. */
            alarm(5);
            exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0) exit(1);
    }
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
    } else if (!strcmp(way, "spawn") || !strcmp(way, "exec")) {
        /* The program that comes after this one, in a child or in this process, has a small part of its memory. */
        char *large = malloc(100 << 20), *words[] = {"true", NULL};
        memset(large, 1, 100 << 20);
        if (!strcmp(way, "exec")) execvp(words[0], words);
        pid_t child;
        if (posix_spawnp(&child, words[0], NULL, NULL, words, environ)) return 1;
        if (waitpid(child, NULL, 0) != child) return 1;
        free(large);
    } else if (!strcmp(way, "_exit")) {
        _exit(0);
    } else if (!strcmp(way, "abort")) {
        kill(getpid(), SIGKILL);
    } else if (!strcmp(way, "handler")) {
        signal(SIGUSR1, leave);
        raise(SIGUSR1);
    } else if (!strcmp(way, "closed")) {
        /* From here on the number of standard error names a file of the program's. */
        close(STDERR_FILENO);
        if (open(argv[2], O_WRONLY | O_CREAT, 0600) != STDERR_FILENO) return 1;
    } else if (!strcmp(way, "all")) {
        for (int file = 3; file < 1024; file++) close(file);
        while (open(argv[2], O_WRONLY | O_CREAT, 0600) < 300) {}
    } else if (!strcmp(way, "bare")) {
        bare();
    } else if (!strcmp(way, "above")) {
        for (int file = 3; file < 1024; file++) close(file);
    } else if (!strcmp(way, "named")) {
        prctl(PR_SET_NAME, "a\nb\033[2J");
    } else if (!strcmp(way, "moves")) {
        chdir("/");
        if (write(STDOUT_FILENO, "there\n", 6) != 6) return 1;
    }
    return 0;
}
