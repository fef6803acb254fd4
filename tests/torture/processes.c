/* Actors that make processes: forks, also in handlers and beside the registration of handlers, and children that share
   the memory. */
#include "torture.h"
#include <dirent.h>
#include <spawn.h>

extern char **environ;

/* Waits for a child; returns its status. A child that could not be made does not count. */
static int status_of(pid_t child, const char *what) {
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("a child of %s is lost, errno %d", what, errno);
    return status;
}

/* Waits for a child that must succeed. */
static void await(pid_t child, const char *what) {
    int status = status_of(child, what);
    if (status) fail("a child of %s ended with status %#x", what, status);
}

/* Waits for a child that registers handlers of fork while it forks, or for a child of that. glibc up to 2.36 may crash
   there by itself, on its own malloc too: it runs handlers from a list that another thread has just freed. */
static void await_beside_handlers(pid_t child) {
    int status = status_of(child, "fork beside handlers");
    int crashed = WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGALRM;
    if (status && !crashed) fail("a child of fork beside handlers ended with status %#x", status);
}

/* Reused memory that calloc asks the kernel about. */
static void ask_kernel(uint64_t *seed) {
    size_t size = (2 << 20) + below(seed, 64) * 65536;
    char *p = malloc(size);
    if (p) memset(p, 1, size);
    free(p);
    p = calloc(1, size);
    for (size_t i = 0; p && i < size; i++)
        if (p[i]) fail("NOT ZERO: calloc(%zu) in a child, offset %zu", size, i);
    free(p);
}

static int open_files(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void *work_in_child(void *unused) {
    uint64_t seed = new_seed();
    steps(&seed, 100);
    return unused;
}

/* What a child does: checks all that it inherited, allocates, asks the kernel, makes a thread. */
static void work_as_child(uint64_t *seed) {
    static int files;
    pthread_t thread;
    check_all("in a child of fork");
    steps(seed, 100);
    ask_kernel(seed);
    if (one_in(seed, 3) && start_thread(&thread, work_in_child, NULL, 0, 0, 0)) pthread_join(thread, NULL);
    if (one_in(seed, 10)) malloc_trim(0);
    if (one_in(seed, 10)) nap_us(300000);
    int now = open_files();
    if (!files) files = now;
    if (!calls_fail && now > files + 6) fail("FILES STAY OPEN: %d, %d some generations before", now, files);
    check_all("at the end of a child");
}

/* A chain of children, each the child of the one before. Each reports progress in the actor's slot, in memory that all
   share, because the whole chain may take long. */
static _Noreturn void generations_of_children(uint64_t *seed, int count, int slot) {
    work_as_child(seed);
    progress(slot);
    while (count-- > 0) {
        pid_t child = fork();
        if (child != 0) {
            await(child, "fork in a child");
            break;
        }
        work_as_child(seed);
        progress(slot);
    }
    _exit(0);
}

void *forks(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("forks");
    while (!atomic_load(&stop)) {
        int generations = one_in(&seed, 20) ? 10 : (int)below(&seed, 2);
        uint64_t its = new_seed();
        int quick = one_in(&seed, 2);
        pid_t child = fork();
        if (child == 0 && quick) _exit(0);
        if (child == 0) generations_of_children(&its, generations, slot);
        await(child, "fork");
        progress(slot);
        if (one_in(&seed, 10)) rest(slot, 50);
    }
    progress_end(slot);
    return unused;
}

void *quick_forks(void *unused) {
    int slot = progress_begin("quick_forks");
    while (!atomic_load(&stop)) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        await(child, "fork");
        progress(slot);
    }
    progress_end(slot);
    return unused;
}

static void *forks_for_ever(void *unused) {
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        await_beside_handlers(child);
    }
    return unused;
}

/* Registers handlers of fork: the C library's list grows by malloc under its lock. A list grows only a few times, so a
   child does it. Beyond some thousand handlers glibc 2.36 reads its old list after a growth. */
void *handlers(void *unused) {
    int slot = progress_begin("handlers");
    for (; !atomic_load(&stop); progress(slot)) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t t;
            for (int i = 0; i < 3; i++) start_thread(&t, forks_for_ever, NULL, 0, 1, 0);
            for (int i = 0; i < 1500; i++) {
                pthread_atfork(NULL, NULL, NULL);
                if (i % 16 == 0) nap_us(50);
            }
            _exit(0);
        }
        await_beside_handlers(child);
    }
    progress_end(slot);
    return unused;
}

enum { GROWERS = 4, GROWN = 2000 };
static unsigned char *grown[GROWERS][GROWN];
static int growth_slot;

/* Reports progress for the parent, because fills may take long (MALLOC_PERTURB_). */
static void *grow(void *arg) {
    unsigned char **mine = grown[(long)arg];
    for (size_t i = 0; i < GROWN; i++) {
        if ((mine[i] = malloc(60000 + i % 7 * 60000))) mine[i][0] = (unsigned char)i;
        if (i % 100 == 0) progress(growth_slot);
    }
    return NULL;
}

/* Several threads commit gigabytes at once, in children, because only growth is of interest. */
void *growth(void *unused) {
    int slot = growth_slot = progress_begin("growth");
    for (; !atomic_load(&stop); progress(slot)) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t t[GROWERS];
            int made[GROWERS];
            for (long i = 0; i < GROWERS; i++) made[i] = start_thread(&t[i], grow, (void *)i, 0, 0, 0);
            for (int i = 0; i < GROWERS; i++)
                if (made[i]) pthread_join(t[i], NULL);
            for (int i = 0; i < GROWERS; i++)
                for (int k = 0; k < GROWN; k++, progress(slot))
                    if (grown[i][k]) {
                        if (grown[i][k][0] != (unsigned char)k) fail("WRONG BYTES in a block that was just made");
                        check_guard(grown[i][k]);
                    }
            _exit(0);
        }
        await(child, "fork");
    }
    progress_end(slot);
    return unused;
}

static void work_in_shared_memory(uint64_t *seed) {
    if (one_in(seed, 3)) {
        char *p[8];
        for (int i = 0; i < 8; i++)
            if ((p[i] = malloc(8 << 20))) memset(p[i], 1, 8 << 20);
        for (int i = 0; i < 8; i++) free(p[i]);
    }
    steps(seed, 50);
    nap_us((long)below(seed, 6000));
    _exit(0);
}
static int shares(void *seed) {
    work_in_shared_memory(seed);
    return 0;
}

void *vforks(void *unused) {
    enum { STACK = 256 << 10 };
    static char *arguments[] = {"true", NULL};
    uint64_t seed = new_seed();
    int slot = progress_begin("vforks");
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (!atomic_load(&stop) && stack != MAP_FAILED) {
        uint64_t its = new_seed();
        pid_t child = -1;
        switch (below(&seed, 5)) {
        case 0:
        case 1:
            child = vfork();
            if (child == 0) work_in_shared_memory(&its);
            break;
        case 2: child = clone(shares, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &its); break;
        case 3: child = clone(shares, stack + STACK, CLONE_VM | SIGCHLD, &its); break;
        default:
            if (!calls_fail && posix_spawnp(&child, "true", NULL, NULL, arguments, environ)) child = -1;
        }
        await(child, "vfork");
        progress(slot);
        rest(slot, (long)below(&seed, 30));
    }
    progress_end(slot);
    return unused;
}

static int forks_in_handlers;
static __thread uint64_t handler_seed __attribute__((tls_model("initial-exec")));

/* Signals may come faster than handlers end, each inside the one before (SA_NODEFER): a stack has room for some. */
enum { MOST_HANDLERS = 8 };

static void handle(int signal) {
    (void)signal;
    if (in_handler >= MOST_HANDLERS) return;
    int saved = errno;
    in_handler++;
    if (!handler_seed) handler_seed = new_seed();
    steps(&handler_seed, 3);
    if (may_fork && forks_in_handlers && one_in(&handler_seed, 4)) {
        may_fork = 0;
        uint64_t its = new_seed();
        pid_t child = fork();
        if (child == 0) {
            steps(&its, 20);
            _exit(0);
        }
        await(child, "fork in a handler");
        may_fork = 1;
    }
    in_handler--;
    errno = saved;
}

void start_signals(uint64_t *seed) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    if (one_in(seed, 2)) action.sa_flags |= SA_NODEFER;
    forks_in_handlers = !one_in(seed, 3);
    long us = (long)between(seed, 300, 8000);
    struct itimerval interval = {{0, us}, {0, us}};
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &interval, NULL)) fail("no signals here");
}
