/* Files that the allocator has open: no more in a child than in its parent, and none with a low number. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { GENERATIONS = 40 };

/* Open files: how many, and the lowest number from 3 on. */
static int files(int *lowest) {
    int count = 0, low = 1 << 30;
    for (int i = 3; i < 4096; i++) {
        if (fcntl(i, F_GETFD) < 0) continue;
        count++;
        if (i < low) low = i;
    }
    if (lowest) *lowest = low;
    return count;
}

/* Makes the allocator ask the kernel about reused memory: of a size that it has no record of yet. */
static void work(void) {
    static size_t size = 256 << 10;
    for (int k = 0; k < 3; k++, size += 64 << 10) {
        unsigned char *p = malloc(size);
        memset(p, 1, size);
        free(p);
        p = calloc(1, size);
        for (size_t i = 0; i < size; i++) CHECK_AT(p[i] == 0, i);
        free(p);
    }
}

static void generations(int bare) {
    int first = 0;
    for (int g = 0; g < GENERATIONS; g++) {
        work();
        if (g == 0) first = files(NULL);
        CHECK_AT(files(NULL) <= first, g);
        int status;
        pid_t child = bare ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        CHECK(child >= 0);
        if (child > 0) {
            CHECK(waitpid(child, &status, 0) == child);
            if (g == 0) {
                CHECK(status == 0);
                return;
            }
            _exit(WEXITSTATUS(status));
        }
        /* Before it asks, a child has at most what it inherited. */
        CHECK(files(NULL) <= first);
    }
    _exit(0);
}
static void forks(void) { generations(0); }
static void bare_forks(void) { generations(1); }

/* The child of a fork that does not ask has none of its parent's files. */
static void child_closes(void) {
    int before = files(NULL);
    work();
    int with = files(NULL);
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(files(NULL) != before);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(files(NULL) == with);
}

/* Where files can have low numbers only, none stays open. */
static void low_limit(void) {
    int before = files(NULL);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 40;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    work();
    CHECK(files(NULL) == before);
    /* It works too where no number at all is free at first; afterwards its file has no low number. */
    int taken[64], count = 0, low;
    while ((taken[count] = dup(1)) >= 0) count++;
    work();
    while (count) close(taken[--count]);
    limit.rlim_cur = 512 < limit.rlim_max ? 512 : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    work();
    if (files(&low) > before) CHECK(before || low >= 40);
}

static const struct test_case CASES[] = {
    CASE(forks),
    CASE(bare_forks),
    CASE(child_closes),
    CASE(low_limit),
};
TEST_MAIN(CASES)
