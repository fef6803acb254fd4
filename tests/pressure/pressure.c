/* Memory pressure by systemd's protocol: MEMORY_PRESSURE_WATCH names a FIFO, a socket or a file of the kernel, and free
   memory goes back when it reports a shortage. */
#include "purge.h"
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { BLOCKS = 64, SIZE = 1 << 20, ROUNDS = 3, FIRST_BYTE_MS = 100 };

static const char *path(void) { return getenv("MEMORY_PRESSURE_WATCH"); }

/* Whether the OS page of an address holds memory. */
static int resident(char *p) {
    unsigned char in = 0;
    char *page = (char *)((uintptr_t)p & ~(uintptr_t)4095);
    CHECK(mincore(page, 1, &in) == 0);
    return in & 1;
}

/* Frees blocks of 64 MiB in all; `at` gets their addresses. */
static void waiting(char **at) {
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((at[i] = malloc(SIZE)));
        memset(at[i], 1, SIZE);
    }
    for (int i = 0; i < BLOCKS; i++) free(at[i]);
    for (int i = 0; i < BLOCKS; i++) at[i] += SIZE / 2;
    WAIT_FOR(threads() == 2, PATIENCE_MS);
}
static int held(char **at, int count) {
    int n = 0;
    for (int i = 0; i < count; i++) n += resident(at[i]);
    return n;
}

/* Milliseconds from a report, which is written to a file, until the first of the resident blocks goes back. Then waits
   for the rest. */
static long first_byte(int file, char **at, int count) {
    int before = held(at, count);
    long start = now_ms();
    CHECK(before > 0);
    CHECK(file < 0 || write(file, "x", 1) == 1);
    while (held(at, count) == before) CHECK(now_ms() - start < PATIENCE_MS);
    long took = now_ms() - start;
    WAIT_FOR(held(at, count) == 0, PATIENCE_MS);
    return took;
}
static int compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}
/* The median counts: on a busy machine one may be late. */
static void check_times(long *ms, int count) {
    for (int i = 0; i < count; i++) printf("first byte after %ld ms\n", ms[i]);
    qsort(ms, count, sizeof *ms, compare);
    CHECK_AT(ms[count / 2] <= FIRST_BYTE_MS, ms[count / 2]);
}

/* The FIFO that the test names. */
static void make_fifo(void) { CHECK(mkfifo(path(), 0600) == 0); }
static int opened(void) {
    int fifo;
    /* Until the helper has opened it too, and has discarded what it wrote itself. */
    WAIT_FOR((fifo = open(path(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0, PATIENCE_MS);
    nap(300);
    return fifo;
}
static long trigger(char **at, int count) {
    int fifo = opened();
    long took = first_byte(fifo, at, count);
    CHECK(close(fifo) == 0);
    return took;
}
/* The pause that neap makes after each report. */
static void pause_over(void) { nap(700); }

/* The delay is an hour. */
static void fifo(void) {
    char *at[BLOCKS];
    long took[ROUNDS];
    make_fifo();
    for (int i = 0; i < ROUNDS; i++) {
        waiting(at);
        pause_over();
        took[i] = trigger(at, BLOCKS);
    }
    check_times(took, ROUNDS);
}

/* The thread other than the main thread. */
static pid_t helper(void) {
    DIR *tasks = opendir("/proc/self/task");
    pid_t found = 0;
    for (struct dirent *entry; (entry = readdir(tasks));)
        if (atoi(entry->d_name) > 0 && atoi(entry->d_name) != getpid()) found = atoi(entry->d_name);
    closedir(tasks);
    return found;
}
static long switches(pid_t thread) {
    char file[64];
    snprintf(file, sizeof file, "/proc/self/task/%d/status", thread);
    return proc_kib(file, "\nvoluntary_ctxt_switches:");
}

enum { FEW = 8, LITTLE = 64 << 10 };
/* Frees so little that only a report makes it go back. */
static void little(char **at) {
    for (int k = 0; k < FEW; k++) CHECK((at[k] = malloc(LITTLE)) && memset(at[k], 1, LITTLE));
    for (int k = 0; k < FEW; k++) free(at[k]), at[k] += LITTLE / 2;
}

/* Too little memory to start a helper waits; a running helper waits only for reports. */
static void idle(void) {
    char *all[BLOCKS], *at[FEW];
    long took[ROUNDS];
    make_fifo();
    waiting(all);
    WAIT_FOR(held(all, BLOCKS) == 0, PATIENCE_MS);
    /* Until then the helper checks waiting memory, or promotes memory. */
    for (long end = now_ms() + PATIENCE_MS, looks = -1; looks < 0 || switches(helper()) - looks > 3;) {
        CHECK(now_ms() < end);
        looks = switches(helper());
        nap(1200);
    }
    for (int i = 0; i < ROUNDS; i++) {
        little(at);
        nap(1200);
        CHECK(threads() == 2);
        int before = held(at, FEW);
        CHECK(before > 0);
        long looks = switches(helper());
        if (i == 0) {
            nap(2000);
            looks = switches(helper()) - looks;
            printf("%ld times awake in 2 s\n", looks);
            CHECK_AT(looks <= 6, looks);
        }
        took[i] = trigger(at, FEW);
    }
    check_times(took, ROUNDS);
    /* It works as a purger as before. */
    waiting(all);
    WAIT_FOR(held(all, BLOCKS) == 0, PATIENCE_MS);
}

static void all_files_closed(void) {
    char *at[BLOCKS];
    make_fifo();
    waiting(at);
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    printf("first byte after %ld ms\n", trigger(at, BLOCKS));
}

static void executed(void) {
    for (int fd = 3; fd < 256; fd++) CHECK_AT(fcntl(fd, F_GETFD) == -1, fd);
}
/* The program, and programs that it executes, have no file of neap's. */
static void no_files(void) {
    char *at[BLOCKS], before[256];
    make_fifo();
    for (int fd = 0; fd < 256; fd++) before[fd] = fcntl(fd, F_GETFD) != -1;
    waiting(at);
    pause_over();
    for (int fd = 0; fd < 256; fd++) CHECK_AT((fcntl(fd, F_GETFD) == -1) == !before[fd], fd);
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "executed", "executed", (char *)NULL);
        _exit(9);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(status == 0, status);
}

/* Constant reports cost little. */
static void storm(void) {
    char *at[BLOCKS];
    make_fifo();
    waiting(at);
    clockid_t clock = (~(clockid_t)helper() << 3) | 6;
    struct timespec before, after;
    int fifo = opened();
    CHECK(clock_gettime(clock, &before) == 0);
    long reports = 0;
    for (long end = now_ms() + 2000; now_ms() < end;) reports += write(fifo, "xxxxxxxx", 8) > 0;
    CHECK(clock_gettime(clock, &after) == 0);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    printf("%ld reports, %ld ms of a processor\n", reports, ms);
    CHECK_AT(ms < 500, ms);
    CHECK(held(at, BLOCKS) == 0);
}

/* A signal that all threads of the program block stays pending until the program takes it. */
static void signals(void) {
    char *at[BLOCKS];
    struct timespec none = {0, 0};
    sigset_t urgent;
    sigemptyset(&urgent);
    sigaddset(&urgent, SIGURG);
    CHECK(sigprocmask(SIG_BLOCK, &urgent, NULL) == 0);
    make_fifo();
    waiting(at);
    WAIT_FOR(held(at, BLOCKS) == 0, PATIENCE_MS);
    for (int round = 0; round < 3; round++) {
        siginfo_t info;
        nap(1000);
        CHECK(threads() == 2);
        CHECK(kill(getpid(), SIGURG) == 0);
        long looks = switches(helper());
        nap(1000);
        looks = switches(helper()) - looks;
        CHECK_AT(looks <= 60, looks);
        /* The helper is woken as before, and ends. */
        CHECK(unshare(CLONE_FS) == 0);
        CHECK_AT(sigtimedwait(&urgent, &info, &none) == SIGURG, round);
        CHECK(info.si_code == SI_USER && info.si_pid == getpid());
        waiting(at);
        WAIT_FOR(held(at, BLOCKS) == 0, PATIENCE_MS);
    }
    /* Reports are handled while it waits. */
    nap(1000);
    CHECK(kill(getpid(), SIGURG) == 0);
    little(at);
    trigger(at, FEW);
}

static int listen_there(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path());
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s >= 0 && bind(s, (struct sockaddr *)&address, sizeof address) == 0 && listen(s, 8) == 0);
    return s;
}
/* Accepts the next connection, and checks that it receives what must be written. */
static int accepted(int s) {
    static const char wanted[] = "some 200000 2000000";
    char got[64];
    int c = accept(s, NULL, NULL);
    CHECK(c >= 0);
    CHECK(read(c, got, sizeof got) == sizeof wanted && memcmp(got, wanted, sizeof wanted) == 0);
    return c;
}

static void socket_(void) {
    char *at[BLOCKS];
    int s = listen_there();
    waiting(at);
    int c = accepted(s);
    printf("first byte after %ld ms\n", first_byte(c, at, BLOCKS));
}

/* A helper that has nothing left to watch ends, and the next one connects again. */
static void socket_closes(void) {
    char *at[BLOCKS];
    int s = listen_there();
    for (int round = 0; round < 2; round++) {
        waiting(at);
        int c = accepted(s);
        WAIT_FOR(held(at, BLOCKS) == 0, PATIENCE_MS);
        nap(300);
        CHECK(threads() == 2);
        close(c);
        WAIT_FOR(threads() == 1, PATIENCE_MS);
    }
}

/* A child of fork watches for itself once it frees memory. */
static void child(void) {
    char *at[BLOCKS];
    int s = listen_there();
    waiting(at);
    int own = accepted(s);
    pid_t child = fork();
    if (child == 0) {
        char *its[BLOCKS];
        waiting(its);
        printf("first byte after %ld ms\n", first_byte(-1, its, BLOCKS));
        fflush(stdout);
        _exit(0);
    }
    int c = accepted(s), status = -1;
    /* The child frees the rest. */
    nap(1000);
    CHECK(write(c, "now", 3) == 3);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(status == 0, status);
    CHECK(held(at, BLOCKS) == BLOCKS);
    first_byte(own, at, BLOCKS);
}

/* The file is missing, of another kind, or not wanted: everything works as without it. */
static void not_watched(void) {
    char *at[BLOCKS];
    waiting(at);
    WAIT_FOR(threads() == 1, PATIENCE_MS);
    CHECK(held(at, BLOCKS) == 0);
}

/* A helper that only watches ends when the process changes its user. */
static void other_user(void) {
    char *at[BLOCKS];
    if (geteuid() != 0) SKIP("needs root");
    make_fifo();
    waiting(at);
    WAIT_FOR(held(at, BLOCKS) == 0, PATIENCE_MS);
    nap(1000);
    CHECK(threads() == 2);
    long start = now_ms();
    CHECK(setuid(65534) == 0);
    WAIT_FOR(threads() == 1, PATIENCE_MS);
    printf("gone after %ld ms\n", now_ms() - start);
}

/* A call that requires the helper to end does not wait until its next look. */
static void unshare_(void) {
    char *at[BLOCKS];
    long best = PATIENCE_MS;
    make_fifo();
    waiting(at);
    for (int round = 0; round < 3; round++) {
        WAIT_FOR(held(at, BLOCKS) == 0 && threads() == 2, PATIENCE_MS);
        nap(1300);
        long start = now_ms();
        /* Whatever is unshared: the helper ends before each such call. */
        CHECK(unshare(CLONE_FS) == 0);
        long took = now_ms() - start;
        best = took < best ? took : best;
    }
    printf("%ld ms at best\n", best);
    CHECK_AT(best < 200, best);
}

/* The kernel's file: another process makes the stalls. */
static void kernel(void) {
    char *at[BLOCKS];
    waiting(at);
    printf("first byte after %ld ms\n", first_byte(-1, at, BLOCKS));
}

static const struct test_case CASES[] = {
    CASE(fifo),    CASE(idle),          CASE(all_files_closed), CASE(no_files),   CASE(storm),        CASE(socket_),  CASE(signals),
    CASE(child),   CASE(socket_closes), CASE(not_watched),      CASE(other_user), CASE(unshare_), CASE(kernel),
    CASE(executed),
};
TEST_MAIN(CASES)
