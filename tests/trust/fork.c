/* fork beside other users of the C library's locks, in handlers, and over generations. */
#include "trust.h"
#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

static struct progress progress;
static atomic_int stop;

static void *fork_all_the_time(void *arg) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&stop)) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) {
            waitpid(child, NULL, 0);
            atomic_fetch_add(&progress.beats[(long)arg], 1);
        }
    }
    return NULL;
}
static void *register_handlers(void *unused) {
    while (!atomic_load(&progress.beats[1])) usleep(100);
    /* The list sometimes doubles, and is then reallocated under the lock. Longer ones crash glibc 2.36 by itself. */
    for (int i = 0; i < 1500; i++) {
        pthread_atfork(NULL, NULL, NULL);
        atomic_fetch_add(&progress.beats[0], 1);
        if (i % 16 == 0) usleep(50);
    }
    atomic_store(&stop, 1);
    return unused;
}
static void register_and_fork(void) {
    for (long i = 1; i < 4; i++) started(fork_all_the_time, (void *)i);
    started(register_handlers, NULL);
    watch_progress(&progress, 4, 1 << 30, &stop);
}

/* A thread that registers fork handlers allocates under the C library's lock; a thread that forks must not hold locks
   of the allocator while it waits for that lock. glibc up to 2.36 may crash here by itself (4 of 40 runs on its own
   malloc): it releases its lock and then reads a handler's address from a list that another thread has just moved and
   freed. On neap, which tries its purges on the first byte of freed memory, that address may point between functions,
   where int3 stands: so a SIGSEGV or SIGTRAP proves nothing here. */
static void handlers_are_registered(void) { in_children(register_and_fork, trial_ms(6000), 1); }

static __thread int ready __attribute__((tls_model("initial-exec")));

static void fork_in_handler(int signal) {
    (void)signal;
    if (!ready) return;
    ready = 0;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) {
        waitpid(child, NULL, 0);
        atomic_fetch_add(&progress.beats[0], 1);
    }
    ready = 1;
}
static void *allocate_all_the_time(void *unused) {
    ready = 1;
    while (!atomic_load(&stop)) {
        char *p[64];
        for (size_t i = 0; i < 64; i++) p[i] = malloc(16 + i * 37);
        for (int i = 0; i < 64; i++) free(p[i]);
    }
    ready = 0;
    return unused;
}

/* A fork in a handler that interrupted malloc or free, beside forks of another thread: the two must not wait for each
   other. */
static void forks_in_handlers(void) {
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (int i = 0; i < 2; i++) started(allocate_all_the_time, NULL);
    started(fork_all_the_time, (void *)1);
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    struct itimerval interval = {{0, 5000}, {0, 5000}};
    CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0);
    watch_progress(&progress, 2, trial_ms(6000), NULL);
    /* Not by stdio, whose locks a fork may hold. */
    if (write(1, "ok\n", 3) != 3) abort();
    _exit(0);
}

static int open_files(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count - 1;
}

/* Makes calloc ask the kernel about reused memory. It does not ask again about a size that comes back dense, so each
   generation has its own sizes. */
static void calloc_recycled(size_t generation) {
    for (size_t k = 0; k < 3; k++) {
        size_t size = (2 << 20) + (generation * 3 + k) * (256 << 10);
        free(filled(size));
        char *p = calloc(1, size);
        CHECK(p);
        for (size_t i = 0; i < size; i++) CHECK_AT(p[i] == 0, i);
        free(p);
    }
}

/* The file through which calloc asks must not stay open in each generation of a chain of forks. */
static void files_over_generations(void) {
    calloc_recycled(0);
    int first = open_files();
    for (long generation = 1; generation < 40; generation++) {
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            int status;
            CHECK(waitpid(child, &status, 0) == child);
            CHECK_AT(status == 0, status);
            if (generation > 1) _exit(0);
            return;
        }
        calloc_recycled((size_t)generation);
        CHECK_AT(open_files() <= first + 1, open_files());
    }
    _exit(0);
}

/* A child whose helper makes a handshake with its only thread just when the parent ends: the thread must not count as
   one that ended with the parent. strace delays the helper in the middle of the handshake. */
static void parent_ends(pid_t (*make_child)(void), void (*work)(void)) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        work();
        pid_t child = make_child();
        CHECK(child >= 0);
        if (child > 0) {
            nap(2500);
            _exit(0);
        }
        work();
        nap(4000);
        free(malloc(1000));
        free(malloc(100000));
        CHECK(write(ends[1], "x", 1) == 1);
        _exit(0);
    }
    CHECK(waitpid(parent, NULL, 0) == parent);
    struct pollfd poll_for = {.fd = ends[0], .events = POLLIN};
    CHECK(poll(&poll_for, 1, 10000) == 1);
}
static void much_waits(void) {
    fill_and_free(20, 2 << 20);
    for (int i = 0; i < 100; i++) free(filled(1000));
}

/* The child has its helper from the fork on, and strace delays the system's answer about its thread's number. */
static void parent_ends_first(void) { parent_ends(fork, much_waits); }

static pid_t bare_child(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

/* No handler runs in the child, whose heap keeps the number of the parent's thread for ever. */
static void parent_of_a_bare_child_ends_first(void) { parent_ends(bare_child, much_waits); }

#ifdef __x86_64__
static volatile long steps_left;
static volatile pid_t forked = -1;

/* The processor's trap flag brings SIGTRAP after each instruction, until the one where the handler forks. */
static void fork_at_a_step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    if (--steps_left > 0) return;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
    forked = fork();
}

/* Frees enough to start a helper, and that start is interrupted; then once more. There must be at most one helper. */
static void free_with_a_fork_at(long step) {
    struct sigaction trap = {.sa_sigaction = fork_at_a_step, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGTRAP, &trap, NULL) == 0);
    char *first = filled(3 << 20), *second = filled(3 << 20);
    steps_left = step;
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "memory", "cc");
    free(first);
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "memory", "cc");
    free(second);
    nap(1);
    CHECK_AT(threads() <= 2, step);
    int status;
    if (forked > 0) CHECK_AT(waitpid(forked, &status, 0) == forked && status == 0, status);
    /* The start does not have that many steps, and so no later one. */
    _exit(forked < 0 ? 2 : 0);
}

/* Whether the start has this many steps: the helper is started with all signals blocked, and then a trap ends the
   process. */
static int comes_to(long step) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) free_with_a_fork_at(step);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP) || (WIFEXITED(status) && WEXITSTATUS(status) == 2)) return 0;
    CHECK_AT(status == 0, step);
    return 1;
}

/* A fork in a handler that interrupts the start of the helper: the child goes on with the start, but has no helper on
   record, and must not start a second one on the same stack. */
static void start_of_helper(void) {
    enum { MOST = 1 << 14, LAST = 50 };
    long from = 1, to = MOST;
    CHECK(!comes_to(to));
    while (to - from > 1) {
        long step = (from + to) / 2;
        if (comes_to(step)) from = step; else to = step;
    }
    CHECK_AT(from > 300, from);
    /* Runs may have different numbers of steps. */
    for (long step = from + 4; step > from - LAST; step--) comes_to(step);
}
#else
static void start_of_helper(void) { SKIP("the trap flag is x86's"); }
#endif

static const struct test_case cases[] = {CASE(handlers_are_registered), CASE(forks_in_handlers),
                                         CASE(files_over_generations), CASE(parent_ends_first),
                                         CASE(parent_of_a_bare_child_ends_first),
                                         CASE(start_of_helper)};
TEST_MAIN(cases)
