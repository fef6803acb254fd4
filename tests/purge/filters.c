/* Filters of system calls: some refuse a call that neap may use, others end the process for all but a few. */
#include "filter.h"
#include "purge.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Makes a system call that no library can intercept. */
static long bare(long number, long a, long b, long c) {
    long result;
    register long d __asm__("r10") = 0, e __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e)
                     : "rcx", "r11", "memory");
    return result;
}

/* Refuses only `number`. neap does not notice a filter set by a direct system call: it must cope with the refusal. */
static void refuse(int number) {
    CHECK(bare(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0) == 0);
    if (bare(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)all_but(number, SECCOMP_RET_ERRNO | EPERM)))
        SKIP("no seccomp filters here");
}

enum how { BY_PRCTL, BY_SYSCALL, ALL_THREADS };
/* Ends the process for any but the usual calls. */
static void kill_others(enum how how) {
    struct sock_fprog *program = only_usual(SECCOMP_RET_KILL_PROCESS, 1);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    unsigned flags = how == ALL_THREADS ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    long failed = how == BY_PRCTL ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)
                                  : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program);
    if (failed) SKIP("no seccomp filters here: errno %d", errno);
}

static void work(void) {
    check_zeroed();
    garbage_mixed();
    for (int i = 0; i < 8; i++) {
        garbage(20, 40 << 10, 300 << 10);
        garbage(2000, 16, 500);
        nap(15);
    }
    check_zeroed();
}
static int denied;
static void first_refused(void) {
    refuse(denied);
    work();
}
static void last_refused(void) {
    with_helper();
    check_zeroed();
    refuse(denied);
    work();
}
/* The filter is set when the program starts. */
static char *self;
static void refused_from_the_start(void) {
    if (getenv("FILTERED")) {
        work();
        return;
    }
    if (denied == __NR_openat || denied == __NR_pread64) SKIP("no program starts without this call");
    CHECK(setenv("FILTERED", "1", 1) == 0);
    refuse(denied);
    execl("/proc/self/exe", self, self, NULL);
    SKIP("exec fails under this filter: errno %d", errno);
}

/* As in most containers: a filter from the start, with which a helper may still run. */
static void from_the_start(void) {
    if (getenv("FILTERED")) {
        with_helper();
        return;
    }
    denied = __NR_userfaultfd, self = (char *)__func__;
    refused_from_the_start();
}

/* NAME_first, NAME_last, NAME_at_start for each call. */
#define CALLS(X)                                                                                        \
    X(ioctl) X(pread64) X(userfaultfd) X(membarrier) X(clone) X(clone3) X(madvise)                      \
    X(rt_sigprocmask) X(prctl) X(fcntl) X(openat) X(lseek) X(dup3) X(gettid) X(get_robust_list) X(getrandom) X(capget) \
    X(prlimit64) X(tgkill) X(memfd_create) X(fallocate) X(close_range) X(sched_setscheduler) X(sched_getaffinity) X(setpriority)
#define DENY(name)                                                                                      \
    static void name##_first(void) { denied = __NR_##name, first_refused(); }                            \
    static void name##_last(void) { denied = __NR_##name, last_refused(); }                              \
    static void name##_at_start(void) {                                                                  \
        denied = __NR_##name, self = (char *)__func__;                                                   \
        refused_from_the_start();                                                                        \
    }
CALLS(DENY)

static void kill_first(void) {
    kill_others(BY_PRCTL);
    work();
}
static void killed_last(enum how how) {
    with_helper();
    check_zeroed();
    garbage_large();
    kill_others(how);
    work();
}
static void kill_last(void) { killed_last(BY_PRCTL); }
static void kill_last_by_syscall(void) { killed_last(BY_SYSCALL); }
static void kill_last_all_threads(void) { killed_last(ALL_THREADS); }
/* The program is idle from then on: no thread that frees could purge in place of the helper. */
static void idle_behind_filter(void) {
    struct sock_fprog *program = all_but(__NR_userfaultfd, SECCOMP_RET_ERRNO | EPERM);
    with_helper();
    garbage_large();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program))
        SKIP("no seccomp filters here");
    wait_for_rss(32 << 10);
}
/* Asks whether there are filters here, as libraries do: that sets no filter. */
static void questions_for_filters(void) {
    errno = 0;
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && (errno == EFAULT || errno == EINVAL));
    for (unsigned flags = 0; flags <= SECCOMP_FILTER_FLAG_TSYNC; flags++) {
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, NULL) == -1);
        CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1);
    }
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1);
    with_helper();
    garbage(100, 40 << 10, 300 << 10);
    wait_for_rss(16 << 10);
}
/* The filter pretends that memory went back: it must not count as zero. */
static void pretended(void) {
    with_helper();
    check_zeroed();
    filter(all_but(__NR_madvise, SECCOMP_RET_ERRNO | 0));
    work();
}
/* Filters that the kernel refuses: neap must not give anything up for them. */
static void refuse_filters(void) {
    struct sock_fprog none = {0, NULL}, *nowhere = (struct sock_fprog *)8;
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &none) == -1 && errno == EINVAL);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nowhere) == -1 && errno == EFAULT);
    CHECK(prctl(PR_SET_SECCOMP, 77, &none) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, ~0u, all_but(__NR_userfaultfd, SECCOMP_RET_ERRNO | EPERM)) == -1);
}
static void refused_filters(void) {
    refuse_filters();
    with_helper();
    wait_for_rss(16 << 10);
}
/* A filter that the process cannot detect: it can open no file, and the filter answers its query like a kernel without
   filters. */
static void no_room_to_look(void) {
    static struct sock_filter code[] = {
        FILTER_NUMBER,
        FILTER_CALL(__NR_prctl, SECCOMP_RET_ERRNO | EINVAL),
        FILTER_CALL(__NR_close_range, SECCOMP_RET_KILL_PROCESS),
        FILTER_CALL(__NR_process_madvise, SECCOMP_RET_KILL_PROCESS),
        FILTER_CALL(__NR_memfd_create, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    static struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(bare(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0) == 0);
    if (bare(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program)) SKIP("no seccomp filters here");
    struct rlimit none = {3, 3};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    work();
    nap(300);
}
/* Strict mode permits reading, writing and exiting. */
static void strict_mode(void) {
    pid_t pid = fork();
    if (pid == 0) {
        with_helper();
        garbage_large();
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) syscall(SYS_exit, 1);
        free(malloc(100));
        syscall(SYS_exit, 0);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) SKIP("no seccomp here");
    CHECK_AT(status == 0, status);
}
/* A child in its parent's memory sets a filter for itself, as launchers do before exec. */
static void in_vfork_child(void) {
    struct sock_fprog *program = all_but(__NR_userfaultfd, SECCOMP_RET_ERRNO | EPERM);
    pid_t pid = vfork();
    if (pid == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)) _exit(1);
        garbage(4, 1 << 20, 2 << 20);
        _exit(0);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (status) SKIP("no seccomp filters here");
    with_helper();
    garbage_large();
    wait_for_rss(16 << 10);
}

/* Threads that allocate and use what neap then gives up, when the filter is set for all of them. */
static atomic_int begun;
static void *busy(void *arg) {
    uint64_t seed = (uintptr_t)arg + 1;
    begun++;
    for (int i = 0; i < 3000; i++) {
        size_t size = next_random(&seed) % (200 << 10) + 1;
        char *p = calloc(1, size);
        CHECK(p && p[0] == 0 && p[size / 2] == 0 && p[size - 1] == 0);
        memset(p, 1, size);
        free(p);
    }
    return NULL;
}
static void under_load(int refused, enum how how) {
    pthread_t t[3];
    for (intptr_t i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)i) == 0);
    /* The C library's first call in a thread is one that the filter forbids (rseq). */
    while (begun < 3) nap(1);
    nap(20);
    for (int i = 0; i < refused; i++) refuse_filters();
    kill_others(how);
    work();
    /* pthread_join may need calls beyond those permitted. */
    nap(1000);
}
static void kill_under_load(void) { under_load(0, BY_PRCTL); }
/* For a moment the threads may make the calls that were refused before. */
static void kill_under_load_once_refused(void) { under_load(20, ALL_THREADS); }

/* Without a helper: what ended threads have freed goes back with the last of them, although the program is then idle.
   */
static void *fill_and_end(void *arg) {
    garbage(30, 512 << 10, 1 << 20);
    return arg;
}
static void threads_end(void) {
    pthread_t t[8];
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, all_but(__NR_userfaultfd, SECCOMP_RET_ERRNO | EPERM)))
        SKIP("no seccomp filters here: errno %d", errno);
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&t[i], NULL, fill_and_end, NULL) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK_AT(status_kib("VmRSS:") < 48 << 10, status_kib("VmRSS:"));
}

#define ROWS(name) {#name "_first", name##_first}, {#name "_last", name##_last}, {#name "_at_start", name##_at_start},
static const struct test_case CASES[] = {
    CALLS(ROWS) CASE(kill_first), CASE(kill_last), CASE(kill_last_by_syscall), CASE(kill_last_all_threads),
    CASE(kill_under_load), CASE(from_the_start), CASE(threads_end), CASE(in_vfork_child), CASE(idle_behind_filter),
    CASE(questions_for_filters), CASE(refused_filters), CASE(no_room_to_look), CASE(strict_mode), CASE(kill_under_load_once_refused),
    CASE(pretended),
};
/* Started again by `refused_from_the_start`, with the name of the case as the program's only argument. */
int main(int argc, char **argv) {
    char *args[] = {argv[0], argv[0], NULL};
    if (argc == 1) return run_cases(2, args, CASES, sizeof CASES / sizeof *CASES);
    return run_cases(argc, argv, CASES, sizeof CASES / sizeof *CASES);
}
