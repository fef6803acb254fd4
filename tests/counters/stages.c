/* A program that holds known amounts of memory, and reports them stage by stage: after each line on standard output it
   waits for one on standard input. */
#include "check.h"
#include "filter.h"
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SMALL = 60000, LARGE = 40 };
static void *small[SMALL], *large[LARGE];
static size_t held, blocks;

static void take(void **p, size_t size, int zero) {
    *p = zero ? calloc(1, size) : malloc(size);
    CHECK(*p);
    memset(*p, 1, size);
    held += malloc_usable_size(*p);
    blocks++;
}
static void give(void **p) {
    held -= malloc_usable_size(*p);
    blocks--;
    free(*p);
    *p = NULL;
}
/* Reports what this process holds, and waits. */
static void stage_of(pid_t pid) {
    char line[100];
    int n = snprintf(line, sizeof line, "%d %zu %zu\n", (int)pid, held, blocks);
    CHECK(write(1, line, n) == n);
    CHECK(read(0, line, sizeof line) >= 0);
}
static void stage(void) { stage_of(getpid()); }
static void grow(void) {
    for (int i = 0; i < SMALL; i++) take(&small[i], 100 + i % 900, i % 10 == 0);
    for (int i = 0; i < LARGE; i++) take(&large[i], 1 << 20, i % 2);
}
static void shrink(void) {
    for (int i = 0; i < SMALL; i++)
        if (i % 4) give(&small[i]);
    for (int i = 0; i < LARGE; i++)
        if (i % 4) give(&large[i]);
}
/* Threads that each have a heap, and only wait. */
static atomic_int resting;
static void *idle(void *arg) {
    for (int i = 0; i < 100; i++) free(malloc(i * 10));
    atomic_fetch_add(&resting, 1);
    for (;;) pause();
    return arg;
}
static void stages(void) {
    pthread_t t;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t, NULL, idle, NULL) == 0);
    while (resting < 3) usleep(1000);
    grow();
    stage();
    shrink();
    stage();
    for (int i = 0; i < LARGE; i++)
        if (i % 4) take(&large[i], 1 << 20, 1);
    stage();
}
static void small_program(void) {
    take(&small[0], 1000, 0);
    stage();
}
/* The parent waits while the child goes through its stages. */
static void parent_of(pid_t pid) {
    int status;
    if (pid > 0) {
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_AT(status == 0, status);
        stage();
        return;
    }
    CHECK(pid == 0);
    for (int i = 0; i < LARGE; i += 2) give(&large[i]);
    for (int i = 0; i < LARGE; i += 2) take(&large[i], 3 << 20, 0);
    stage();
    _exit(0);
}
static void forks(void) {
    grow();
    stage();
    parent_of(fork());
}
static void forks_raw(void) {
    grow();
    stage();
    parent_of(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}
/* memfd_create ends the process. */
static void filtered(void) {
    filter(all_but(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS));
    grow();
    stage();
}
/* A file of any length brings SIGXFSZ. */
static void no_files(void) {
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    grow();
    stage();
}
static void keeps_no_file(void) {
    /* Numbers below 48: neap keeps another file, with a higher number, for other purposes. */
    int before[48];
    for (int fd = 0; fd < 48; fd++) before[fd] = fcntl(fd, F_GETFD);
    grow();
    for (int fd = 0; fd < 48; fd++) CHECK_AT(fcntl(fd, F_GETFD) == before[fd], fd);
    stage();
}
/* Between two stages: a child (`pid` is 0 there) that allocates, and then ends. */
static void child_ends(pid_t pid, pid_t parent) {
    int status;
    if (pid == 0) {
        for (int i = 0; i < 10000; i++) free(malloc(100));
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_AT(status == 0, status);
    stage_of(parent);
}
static void child_that_ends(void) {
    pid_t parent = getpid();
    child_ends(fork(), parent);
}
static void bare_child(void) {
    pid_t parent = getpid();
    take(&small[0], 1000, 0);
    stage();
    child_ends((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), parent);
}
/* The child has no descriptor left for a file of its own. */
static void child_without_file(void) {
    take(&small[0], 1000, 0);
    stage();
    struct rlimit none = {3, 3};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    child_that_ends();
}
/* Making a file, or asking whether that is permitted, ends the child. */
static void child_under_filter(void) {
    static const int UNUSUAL[] = {SYS_openat, SYS_prlimit64, SYS_getrlimit, SYS_ioctl, SYS_lseek, SYS_fcntl, SYS_mincore,
                                  SYS_memfd_create, SYS_fallocate, SYS_ftruncate, SYS_gettid, SYS_get_robust_list, SYS_capget,
                                  SYS_membarrier, SYS_getrandom, SYS_getpid, SYS_getppid, SYS_tgkill, SYS_process_madvise};
    pid_t parent = getpid();
    take(&small[0], 1000, 0);
    stage();
    filter(none_of(UNUSUAL, sizeof UNUSUAL / sizeof *UNUSUAL, SECCOMP_RET_KILL_PROCESS));
    child_ends(fork(), parent);
}

/* A filter that a program is started with may end it for a call that other programs do not make. */
static void started_under_filter(void) {
    pid_t child = fork();
    if (child == 0) {
        filter(all_but(SYS_fallocate, SECCOMP_RET_KILL_PROCESS));
        execlp("true", "true", (char *)NULL);
        _exit(127);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_AT(status == 0, status);
    stage();
}

static const struct test_case CASES[] = {
    CASE(stages),   CASE(small_program), CASE(forks),         CASE(forks_raw),
    CASE(filtered), CASE(no_files),      CASE(keeps_no_file), CASE(child_without_file),
    CASE(child_under_filter), CASE(bare_child), CASE(started_under_filter),
};
TEST_MAIN(CASES)
