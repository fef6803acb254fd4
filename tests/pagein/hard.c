// More programs that are hard to trace, one for each case.
#include "filter.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Touches this many pages.
static void touch(size_t pages) {
    char *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // So that each page faults, also where the system uses huge pages for all large mappings.
    madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i++) memory[i * 4096] = 1;
    munmap(memory, pages * 4096);
}

// Runs a child; returns how it ended: the exit status, or 128 plus the signal.
static int child(size_t pages) {
    pid_t pid = fork();
    if (pid == 0) {
        touch(pages);
        _exit(5);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A filter kills processes that call userfaultfd, which was not known when the filter was written.
static int sandbox(void) {
    filter(all_but(SYS_userfaultfd, SECCOMP_RET_KILL_PROCESS));
    return child(50);
}

// Children that the kernel reaps: their faults are not counted.
static int reaped(void) {
    signal(SIGCHLD, SIG_IGN);
    for (int i = 0; i < 10; i++) {
        if (fork() == 0) {
            touch(100);
            _exit(0);
        }
    }
    while (wait(0) > 0) continue;
    return 0;
}

static void *touching(void *argument) {
    touch(10);
    return argument;
}

// Makes short threads one after the other.
static void *making(void *argument) {
    for (;;) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, touching, NULL) == 0);
        pthread_join(thread, NULL);
    }
    return argument;
}

// Endless threads of a process whose first thread ends.
static int threads(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, making, NULL) == 0);
    }
    dprintf(1, "ready\n");
    pthread_exit(NULL);
}

// Touches pages at each byte of the input, more of them for an `l`; ends with the input.
static int steps(void) {
    char byte;
    dprintf(1, "ready\n");
    while (read(0, &byte, 1) == 1) {
        for (int i = 0; i < (byte == 'l' ? 500 : 1); i++) touch(1000);
        dprintf(1, "done\n");
    }
    return 0;
}

// A child that ends with the input, and is not reaped.
static int zombie(void) {
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        while (read(0, &byte, 1) == 1) continue;
        _exit(0);
    }
    dprintf(1, "%d\n", pid);
    for (;;) pause();
}

static void *staying(void *argument) {
    sleep(2);
    return argument;
}

// Leaves processes that cannot be stopped at once: in a vfork, and one whose first thread has ended.
static int leaves(void) {
    for (int i = 0; i < 8; i++) {
        if (fork() == 0) {
            if (vfork() == 0) {
                sleep(2);
                _exit(0);
            }
            _exit(0);
        }
    }
    if (fork() == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, staying, NULL) == 0);
        pthread_exit(NULL);
    }
    usleep(300000);
    return 0;
}

// Leaves a process that keeps making others, and one that reports whether it goes on.
static int leaves_forks(void) {
    // Touches pages, so that neap has much to write.
    touch(6000);
    volatile long *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED);
    if (fork() == 0) {
        for (time_t end = time(NULL) + 5; time(NULL) < end; ++*made) {
            pid_t child = fork();
            if (child == 0) _exit(0);
            CHECK(waitpid(child, NULL, 0) == child);
        }
        _exit(0);
    }
    if (fork() == 0) {
        // Until neap no longer traces them, and is about to write its trace.
        usleep(1500000);
        long before = *made;
        sleep(1);
        puts(*made == before ? "stopped" : "goes on");
        exit(0);
    }
    usleep(300000);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "sandbox")) return sandbox();
    if (!strcmp(what, "reaped")) return reaped();
    if (!strcmp(what, "threads")) return threads();
    if (!strcmp(what, "steps")) return steps();
    if (!strcmp(what, "zombie")) return zombie();
    if (!strcmp(what, "leaves")) return leaves();
    if (!strcmp(what, "leaves_forks")) return leaves_forks();
    return 2;
}
