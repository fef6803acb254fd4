/* What a program may do to its own process while the helper lives: signals, files, users, namespaces, exec, fork. */
#include "purge.h"
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

/* Not in older headers. */
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static void wait_ok(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_AT(status == 0, status);
}

/* Signals. */
static pid_t main_thread;
static atomic_int handled, elsewhere;
static void on_signal(int sig) {
    (void)sig;
    if (syscall(SYS_gettid) != main_thread) elsewhere++;
    handled++;
}
static void signals(void) {
    main_thread = getpid();
    with_helper();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && signal(SIGUSR1, on_signal) != SIG_ERR);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    nap(50);
    sigset_t pending;
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) && handled == 0);
    int sig;
    CHECK(sigwait(&set, &sig) == 0 && sig == SIGUSR1 && handled == 0);
    CHECK(signal(SIGUSR2, on_signal) != SIG_ERR);
    for (int i = 0; i < 200; i++) {
        if (i % 50 == 0) garbage_large();
        CHECK(kill(getpid(), SIGUSR2) == 0);
    }
    CHECK(handled == 200 && elsewhere == 0);
}

/* A parent that waits for a child cannot distinguish the helper from other threads, nor can exec. */
static void exec_(void) {
    with_helper();
    execl("/bin/echo", "echo", "ok", NULL);
    CHECK(!"exec");
}

/* Files: all numbers may be closed or replaced at any time. */
static void all_fds_closed(void) {
    with_helper();
    check_zeroed();
    int out = dup(1);
    for (int fd = 3; fd < 300; fd++)
        if (fd != out) close(fd);
    garbage_large();
    check_zeroed();
    for (int round = 0; round < 40; round++) {
        closefrom(out + 1);
        garbage(20, 40 << 10, 1 << 20);
        check_zeroed();
    }
}
static void all_fds_replaced(void) {
    with_helper();
    check_zeroed();
    int zero = open("/dev/zero", O_RDONLY), self = open("/proc/self/maps", O_RDONLY);
    CHECK(zero >= 0 && self >= 0);
    for (int round = 0; round < 40; round++) {
        for (int fd = 10; fd < 128; fd++) CHECK(dup2(round % 2 ? zero : self, fd) == fd);
        garbage(20, 40 << 10, 1 << 20);
        check_zeroed();
    }
}
/* Blocks of which some OS pages are written, so that asking which ones pays. */
static void check_sparse(void) {
    const size_t size = 20 << 20, step = 64 << 10;
    char *p = calloc(1, size);
    CHECK(p);
    for (size_t at = 0; at < size; at += step) CHECK_AT(p[at] == 0, at);
    for (size_t at = 0; at < size; at += step) p[at] = 1;
    free(p);
}
static void other_pagemap(void) {
    /* The pagemap of another process, at all numbers: it would report that nothing is resident. */
    char path[64];
    pid_t pid = fork();
    if (pid == 0)
        for (;;) pause();
    CHECK(pid > 0);
    for (int i = 0; i < 4; i++) check_sparse();
    snprintf(path, sizeof path, "/proc/%d/pagemap", pid);
    int theirs = open(path, O_RDONLY);
    if (theirs < 0) SKIP("the pagemap of a child cannot be opened");
    for (int fd = theirs + 1; fd < 128; fd++) CHECK(dup2(theirs, fd) == fd);
    /* neap checks its file once for each step of the clock. */
    nap(20);
    for (int i = 0; i < 4; i++) check_sparse();
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
}
static void lowest_fd(void) {
    int before = open("/dev/null", O_RDONLY);
    close(before);
    for (int round = 0; round < 20; round++) {
        garbage(60, 1 << 20, 3 << 20);
        check_zeroed();
        int fd = open("/dev/null", O_RDONLY);
        CHECK_AT(fd == before, fd);
        close(fd);
    }
    WAIT_FOR(threads() == 1, PATIENCE_MS);
    int kept = 0;
    for (int fd = 3; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        char link[64], name[32];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(name, link, sizeof link - 1);
        if (flags < 0 || n < 0) continue;
        link[n] = 0;
        if (!strstr(link, "/pagemap")) continue;
        kept++;
        CHECK_AT(fd >= 48, fd);
        CHECK_AT(flags & FD_CLOEXEC, fd);
    }
    CHECK_AT(kept <= 1, kept);
}
/* The helper's first steps, beside a program of one thread that relies on the lowest number. */
static void lowest_fd_at_start(void) {
    int lowest = open("/dev/null", O_RDONLY);
    close(lowest);
    for (int round = 0; round < 10; round++) {
        garbage(16, 1 << 20, 1 << 20);
        for (long end = now_ms() + 20; now_ms() < end;) {
            int fd = open("/dev/null", O_RDONLY);
            CHECK_AT(fd == lowest, fd);
            close(fd);
        }
        WAIT_FOR(threads() == 1, PATIENCE_MS);
    }
}

/* Namespaces. */
static void unshare_ok(int flags) {
    if (unshare(flags) == 0) return;
    if (errno == EPERM || errno == ENOSPC || errno == ENOSYS) SKIP("namespaces are refused: errno %d", errno);
    CHECK(!"the process has one thread");
}
static void unshare_user(void) {
    with_helper();
    unshare_ok(CLONE_NEWUSER);
    garbage_mixed();
    wait_for_rss(16 << 10);
    with_helper();
    CHECK(unshare(CLONE_NEWNS) == 0 || errno == EPERM);
    check_zeroed();
}
static void unshare_by_syscall(void) {
    with_helper();
    if (syscall(SYS_unshare, CLONE_NEWUSER) && errno != EPERM) CHECK(!"the process has one thread");
}
static void unshare_fails(void) {
    with_helper();
    errno = 0;
    CHECK(unshare(-1) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(setns(-1, 0) == -1 && errno == EBADF);
    wait_for_rss(16 << 10);
}
/* Threads that keep unsharing their table of files, while others need the helper. */
static void *unsharer(void *arg) {
    for (int i = 0; i < 150; i++) {
        CHECK(unshare(i % 2 ? CLONE_FILES : CLONE_SYSVSEM) == 0);
        if (i % 8 == 0) garbage(10, 100 << 10, 1 << 20);
    }
    return arg;
}
static void unshare_at_once(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, unsharer, NULL) == 0);
    for (int i = 0; i < 20; i++) garbage(20, 100 << 10, 2 << 20);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
    garbage_large();
    wait_for_rss(16 << 10);
    WAIT_FOR(threads() == 1, PATIENCE_MS);
}
/* A handler that interrupts unshare and forks: the child returns from it, and may have a helper afterwards. Except
 * where it interrupted a call that frees or starts a helper: then the child has no heap and no figures. */
static volatile pid_t child_of_handler;
static atomic_int *hits;
static void fork_in_handler(int signal) {
    (void)signal;
    child_of_handler = fork();
}
static void fork_in_unshare(void) {
    hits = mmap(NULL, sizeof *hits, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(hits != MAP_FAILED && signal(SIGALRM, fork_in_handler) != SIG_ERR);
    for (int i = 0; i < 20; i++) {
        with_helper();
        child_of_handler = -1;
        struct itimerval soon = {{0, 0}, {0, 10 + i * 20}};
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        CHECK(unshare(CLONE_SYSVSEM) == 0);
        int was_in_call = child_of_handler != -1;
        while (child_of_handler == -1) nap(1);
        if (child_of_handler == 0) {
            signal(SIGALRM, SIG_DFL);
            alarm(120);
            if (mallinfo2().arena == 0) _exit(0);
            atomic_fetch_add(hits, was_in_call);
            with_helper();
            CHECK(unshare(CLONE_SYSVSEM) == 0);
            with_helper();
            _exit(0);
        }
        wait_ok(child_of_handler);
    }
    if (!*hits) SKIP("no signal came in time");
}
static void setns_user(void) {
    int ends[2], fd = -1;
    char byte = 0, path[64];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        byte = unshare(CLONE_NEWUSER) ? 'n' : 'y';
        CHECK(write(ends[1], &byte, 1) == 1);
        for (;;) pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    if (byte == 'y') fd = open(path, O_RDONLY);
    with_helper();
    int result = fd < 0 ? 0 : setns(fd, CLONE_NEWUSER), error = errno;
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
    if (fd < 0) SKIP("user namespaces are refused");
    CHECK_AT(result == 0 || error == EPERM, error);
    garbage_large();
    wait_for_rss(16 << 10);
}
static void without_proc(void) {
    if (geteuid()) SKIP("only root can change its root");
    char dir[] = "/tmp/neap-rootXXXXXX";
    CHECK(mkdtemp(dir));
    /* RSS is read through a file opened before, from its start each time. */
    int status = open("/proc/self/statm", O_RDONLY), above = open("/tmp", O_RDONLY | O_DIRECTORY);
    with_helper();
    int done = chroot(dir) || chdir("/");
    garbage_mixed();
    check_zeroed();
    CHECK(!done && access("/proc", F_OK));
    for (long end = now_ms() + PATIENCE_MS;;) {
        char text[128];
        long size, pages;
        ssize_t n = pread(status, text, sizeof text - 1, 0);
        CHECK(n > 0);
        text[n] = 0;
        CHECK(sscanf(text, "%ld %ld", &size, &pages) == 2);
        if (pages < (32 << 20) / sysconf(_SC_PAGESIZE)) break;
        CHECK_AT(now_ms() < end, pages);
        /* Without /proc the threads that free memory are the purger. */
        garbage(5, 40 << 10, 100 << 10);
        nap(10);
    }
    check_zeroed();
    CHECK(unlinkat(above, dir + strlen("/tmp/"), AT_REMOVEDIR) == 0);
}

/* Forks. */
static void child_life(int returns) {
    alarm(120);
    /* At most a helper of its own, where the parent had freed much. */
    CHECK(threads() <= 1 + returns);
    check_zeroed();
    if (returns) {
        with_helper();
        wait_for_rss(24 << 10);
    }
    _exit(0);
}
static void fork_with_helper(void) {
    for (int round = 0; round < 3; round++) {
        with_helper();
        pid_t pid = fork();
        if (pid == 0) child_life(1);
        garbage_large();
        wait_ok(pid);
    }
    wait_for_rss(16 << 10);
}
/* What waits at a fork also waits in the child, even in one that makes no calls. */
static void idle_child(void) {
    with_helper();
    garbage_large();
    pid_t pid = fork();
    if (pid == 0) {
        wait_for_rss(32 << 10);
        _exit(0);
    }
    wait_ok(pid);
    wait_for_rss(16 << 10);
}
static atomic_int stop;
static void *busy(void *arg) {
    uint64_t seed = (uintptr_t)arg + 1;
    while (!stop) {
        size_t size = next_random(&seed) % (256 << 10) + 1;
        char *p = next_random(&seed) % 2 ? malloc(size) : calloc(1, size);
        CHECK(p);
        memset(p, 1, size);
        free(p);
        if (next_random(&seed) % 256 == 0) garbage(20, 64 << 10, 1 << 20);
    }
    return NULL;
}
static void forks_under_load(void) {
    const char *wanted = getenv("FORKS");
    int forks = wanted ? atoi(wanted) : 1000;
    pthread_t t[2];
    for (intptr_t i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)i) == 0);
    for (int i = 0; i < forks; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(120);
            garbage(3, 16, 300 << 10);
            char *p = calloc(1, 500 << 10);
            CHECK(p && !p[0] && !p[300000]);
            _exit(0);
        }
        wait_ok(pid);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
}
static void vfork_exec(void) {
    for (volatile int i = 0; i < 30; i++) {
        garbage(20, 1 << 20, 2 << 20);
        pid_t pid = vfork();
        if (pid == 0) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        wait_ok(pid);
    }
    wait_for_rss(16 << 10);
}
/* Children in their parent's memory. What they free waits for the parent's next call, and its helper must not be
   theirs. */
static void vfork_frees(void) {
    for (volatile int i = 0; i < 3; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            garbage(20, 1 << 20, 2 << 20);
            _exit(0);
        }
        wait_ok(pid);
    }
    with_helper();
    wait_for_rss(16 << 10);
}
/* Files that they open, and their process numbers, are not the parent's. */
static int pagemaps(void) {
    int count = 0;
    for (int fd = 3; fd < 128; fd++) {
        char path[64], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof name - 1) > 0) count += strstr(name, "pagemap") != NULL;
    }
    return count;
}
static void vfork_asks(void) {
    for (int i = 0; i < 4; i++) check_sparse();
    if (pagemaps() != 1) SKIP("the page map cannot be read");
    for (volatile int i = 0; i < 20; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            for (int fd = 3; fd < 128; fd++) close(fd);
            for (int round = 0; round < 4; round++) check_sparse();
            _exit(0);
        }
        wait_ok(pid);
    }
    /* neap opens the file again, but not for ever. */
    for (int fd = 3; fd < 128; fd++) close(fd);
    for (int i = 0; i < 4; i++) check_sparse();
    CHECK_AT(pagemaps() == 1, pagemaps());
}
static void vfork_unshares(void) {
    with_helper();
    pid_t pid = vfork();
    if (pid == 0) _exit(unshare(CLONE_FILES) != 0);
    wait_ok(pid);
    garbage_large();
    wait_for_rss(16 << 10);
    with_helper();
}
static void child_of_bare_fork(void) {
    alarm(120);
    check_zeroed();
    garbage_mixed();
    check_zeroed();
    CHECK(unshare(CLONE_FILES) == 0);
    _exit(0);
}
static int cloned(void *arg) {
    CHECK(arg == (void *)1);
    child_of_bare_fork();
    return 1;
}
/* By clone or a direct system call, so that no handlers run: the child must find out by itself. The program has one
 * thread, so its child may do everything. */
static void bare_fork(void) {
    static char stack[64 << 10] __attribute__((aligned(16)));
    for (int i = 0; i < 9; i++) {
        with_helper();
        check_zeroed();
        garbage(20, 64 << 10, 1 << 20);
        nap(i * 31 % 100);
        pid_t pid, parents = 0;
        if (i % 3 == 0) pid = syscall(SYS_fork);
        else if (i % 3 == 1) pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        else pid = clone(cloned, stack + sizeof stack, CLONE_PARENT_SETTID | SIGCHLD, (void *)1, &parents);
        if (pid == 0) child_of_bare_fork();
        if (i % 3 == 2) CHECK(parents == pid);
        wait_ok(pid);
    }
    errno = 0;
    CHECK(clone(cloned, NULL, SIGCHLD, NULL) == -1 && errno == EINVAL);
}
/* The kernel refuses arguments that cannot be read. */
static void bare_clone_of_nothing(void) {
    char *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(closed != MAP_FAILED);
    char *const wrong[] = {NULL, (char *)16, closed, closed - 4, (char *)-64};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        errno = 0;
        CHECK_AT(syscall(SYS_clone3, wrong[i], 64) == -1 && (errno == EFAULT || errno == ENOSYS), errno);
    }
}

/* A child in a time namespace, in which its clock is behind the parent's. */
static void clock_behind(void) {
    enum { SECONDS = 60 };
    struct timespec up;
    CHECK(clock_gettime(CLOCK_BOOTTIME, &up) == 0);
    if (up.tv_sec <= SECONDS) SKIP("the system has just started");
    with_helper();
    if (unshare(CLONE_NEWTIME)) SKIP("time namespaces are refused: errno %d", errno);
    int offsets = open("/proc/self/timens_offsets", O_WRONLY);
    if (offsets < 0 || dprintf(offsets, "monotonic -%d 0\nboottime -%d 0\n", SECONDS, SECONDS) < 0)
        SKIP("clocks cannot be set: errno %d", errno);
    close(offsets);
    pid_t child = fork();
    if (child == 0) {
        garbage_mixed();
        long start = now_ms();
        while (status_kib("VmRSS:") > 16 << 10) {
            CHECK_AT(now_ms() - start < SECONDS / 2 * 1000, status_kib("VmRSS:"));
            nap(10);
        }
        _exit(0);
    }
    wait_ok(child);
}

/* A limit on address space, and threads that need much memory in turn. */
static void *limited_life(void *arg) {
    uint64_t seed = (uintptr_t)arg + 1;
    char *p[50] = {0};
    size_t size[50] = {0};
    for (int i = 0, refused = 0; i < 20000; i++) {
        int at = next_random(&seed) % 50;
        if (p[at]) CHECK_FILL(p[at], size[at] > 4096 ? 4096 : size[at], at);
        free(p[at]);
        size[at] = next_random(&seed) % (next_random(&seed) % 16 ? 4000 : 8 << 20) + 1;
        p[at] = malloc(size[at]);
        refused += !p[at];
        if (p[at]) fill(p[at], size[at] > 4096 ? 4096 : size[at], at);
    }
    for (int i = 0; i < 50; i++) free(p[i]);
    return NULL;
}
static void address_limit(void) {
    struct rlimit limit = {1ul << 30, 1ul << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    pthread_t t[4];
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 256 << 10) == 0);
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&t[i], &attr, limited_life, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
    wait_for_rss(32 << 10);
    check_zeroed();
}

static const struct test_case CASES[] = {
    CASE(signals),          CASE(exec_),          CASE(all_fds_closed),     CASE(all_fds_replaced),
    CASE(other_pagemap),    CASE(lowest_fd),      CASE(unshare_user),
    CASE(unshare_fails),    CASE(setns_user),     CASE(unshare_by_syscall), CASE(unshare_at_once),
    CASE(fork_with_helper), CASE(without_proc),   CASE(forks_under_load),   CASE(vfork_exec),
    CASE(bare_fork),        CASE(address_limit),      CASE(fork_in_unshare),
    CASE(idle_child),       CASE(vfork_frees),    CASE(vfork_asks),         CASE(vfork_unshares),
    CASE(lowest_fd_at_start), CASE(bare_clone_of_nothing), CASE(clock_behind),
};
TEST_MAIN(CASES)
