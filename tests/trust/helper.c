/* The helper thread: how it starts and ends beside the program's threads, whose errno it must not change, and to which
   process it belongs. */
#include "trust.h"
#include "filter.h"
#include <grp.h>

static struct progress progress;
static atomic_int stop;

static void *set_options(void *unused) {
    for (long end = now_ms() + 2000, k = 0; now_ms() < end; k++) mallopt(M_TRIM_THRESHOLD, (int)((64 << 20) + k % 2 * 4096));
    return unused;
}
static void *fill_and_rest(void *arg) {
    while (!atomic_load(&stop)) {
        fill_and_free(8, 3 << 20);
        atomic_fetch_add(&progress.beats[(long)arg], 1);
        usleep(20000);
    }
    return NULL;
}

/* A helper that is being started must not count as one that a fork left behind: two would run, and a thread that frees
   would wait for one that never ends. */
static void start_beside_options(void) {
    started(set_options, NULL);
    for (long i = 0; i < 4; i++) started(fill_and_rest, (void *)i);
    watch_progress(&progress, 4, trial_ms(4000), NULL);
}

enum { QUEUE = 4000, ITEMS = 60000, THREADS = 4 };
static void *queue[QUEUE];
static long head, tail;
static int producers, consumers;
static atomic_int done;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void *produce(void *arg) {
    uint64_t seed = (uint64_t)(long)arg * 7919 + 12345;
    for (int i = 0; i < ITEMS; i++) {
        char *p = malloc(1024 + next_random(&seed) % (32768 - 1024));
        CHECK(p);
        p[0] = 1;
        pthread_mutex_lock(&lock);
        while (head - tail == QUEUE) pthread_cond_wait(&changed, &lock);
        queue[head++ % QUEUE] = p;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        atomic_fetch_add(&progress.beats[0], 1);
    }
    pthread_mutex_lock(&lock);
    producers--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}
static void *consume(void *unused) {
    for (;;) {
        void *items[64];
        int n = 0;
        pthread_mutex_lock(&lock);
        while (head == tail && producers) pthread_cond_wait(&changed, &lock);
        while (n < 64 && head != tail) items[n++] = queue[tail++ % QUEUE];
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        for (int i = 0; i < n; i++) free(items[i]);
        if (!n) break;
        atomic_fetch_add(&progress.beats[0], 1);
    }
    pthread_mutex_lock(&lock);
    if (--consumers == 0) atomic_store(&done, 1);
    pthread_mutex_unlock(&lock);
    return unused;
}

static void pass_blocks_on(void) {
    pthread_t t[THREADS];
    producers = consumers = THREADS / 2;
    for (long i = 0; i < THREADS; i++) t[i] = started(i % 2 ? consume : produce, (void *)i);
    watch_progress(&progress, 1, 1 << 30, &done);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
}

/* The same in an ordinary program, whose threads pass blocks on: each child takes half a second. */
static void blocks_passed_on(void) { in_children(pass_blocks_on, trial_ms(5000), 0); }

/* The helper has its own errno: its failed calls must not change errno of the thread that started it. Run where
   clock_gettime fails. */
static void errno_of_the_starter(void) {
    fill_and_free(40, 1 << 20);
    for (int i = 0; i < 200; i++) {
        errno = 777;
        for (long end = now_ms() + 10; now_ms() < end;) {} /* a system call might change errno by itself */
        CHECK_AT(errno == 777, errno);
        if (i % 50 == 49) fill_and_free(40, 1 << 20);
    }
}

static void *fill_once(void *unused) {
    fill_and_free(40, 1 << 20);
    return unused;
}

/* The helper must not write into the thread storage of a thread that has ended and whose stack is unmapped. */
static void starter_unmapped(void) {
    enum { STACK = 1 << 20 };
    pthread_attr_t attributes;
    pthread_t t;
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK) == 0);
    CHECK(pthread_create(&t, &attributes, fill_once, NULL) == 0 && pthread_join(t, NULL) == 0);
    CHECK(munmap(stack, STACK) == 0);
    for (int i = 0; i < 12; i++) {
        nap(250);
        fill_and_free(40, 1 << 20);
    }
}

/* A program of one thread relies on the lowest free number: no file of neap's may take it meanwhile. */
static void lowest_number_stays(void) {
    int lowest = open("/dev/null", O_RDONLY);
    close(lowest);
    for (long end = now_ms() + 3000; now_ms() < end;) {
        fill_and_free(20, 1 << 20);
        for (long soon = now_ms() + 200; now_ms() < soon;) {
            int file = open("/dev/null", O_RDONLY);
            CHECK_AT(file == lowest, file);
            close(file);
        }
    }
}

/* Runs the case that NEAP_TRUST_CASE names under a filter that refuses clock_gettime, as sandboxes set it that rely on
   the vDSO. */
static void under_filter(void) {
    const char *inner = getenv("NEAP_TRUST_CASE");
    CHECK(inner);
    filter(all_but(__NR_clock_gettime, SECCOMP_RET_ERRNO | EPERM));
    execl("/proc/self/exe", "helper", inner, (char *)NULL);
    CHECK(0 && "exec");
}

static void *ask_without_end(void *unused) {
    enum { SIZE = 4 << 20, PAGE = 4096 };
    for (size_t round = 0;; round++) {
        char *p = calloc(1, SIZE);
        CHECK(p && p[round * PAGE % SIZE] == 0);
        for (size_t at = round % 3 * PAGE; at < SIZE; at += 3 * PAGE) p[at] = 1;
        free(p);
    }
    return unused;
}
/* A filter for all threads that ends the process for a query of calloc's, set while they are about to make it. */
static void filter_beside_questions(void) {
    struct sock_fprog *program = all_but(__NR_ioctl, SECCOMP_RET_KILL_PROCESS);
    pthread_t t[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, ask_without_end, NULL) == 0);
    usleep(100000);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program) == 0);
    usleep(100000);
    /* stdio might ask about the output, by the call for which the filter kills. */
    CHECK(write(1, "ok\n", 3) == 3);
    _exit(0);
}

static void *fill_without_end(void *unused) {
    atomic_store(&done, 1);
    for (;;) fill_and_free(8, 1 << 20);
    return unused;
}
/* A filter that ends the process for the first call of a thread that starts a helper. Run where that call is late. */
static void filter_beside_start(void) {
    struct sock_fprog *program = all_but(__NR_rt_sigprocmask, SECCOMP_RET_KILL_PROCESS);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    started(fill_without_end, NULL);
    while (!atomic_load(&done)) usleep(1000);
    usleep(100000);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program) == 0);
    usleep(600000);
    CHECK(write(1, "ok\n", 3) == 3);
    _exit(0);
}

/* The kernel may be late to forget an ended helper; a call that requires a process of one thread waits for that. */
static void unshare_behind_the_helper(void) {
    for (int i = 0; i < 3; i++) {
        fill_and_free(40, 1 << 20);
        if (strict()) WAIT_FOR(threads() == 2, PATIENCE_MS);
        CHECK(unshare(CLONE_THREAD) == 0);
    }
}

/* A child of vfork that frees must not end the helper with it: what is freed later still goes back. */
static void vfork_child_frees(void) {
    static char *p[64];
    free(filled(1000));
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 8; i++) free(filled(8 << 20));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 64; i++) p[i] = filled(1 << 20);
    for (int i = 0; i < 64; i++) free(p[i]);
    if (strict()) WAIT_FOR(status_kib("VmRSS:") < 20 << 10, 10000);
}

static int fill_and_end(void *arg) {
    char *p[32];
    for (int i = 0; i < 32; i++) p[i] = filled(300000);
    for (int i = 0; i < 32; i++) free(p[i]);
    usleep((unsigned)(long)arg);
    _exit(0);
}

/* Only the first helper of a process is of interest. */
static void share_and_end(void) {
    enum { STACK = 1 << 20 };
    static char *p[64], *small[20000];
    uint64_t seed = (uint64_t)getpid() * 2654435761u + 1;
    alarm(20);
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    void *naps = (void *)(next_random(&seed) % 6000);
    pid_t child = clone(fill_and_end, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, naps);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (size_t i = 0; i < 64; i++) p[i] = filled(100000 + i * 100000);
    for (int i = 0; i < 64; i++) free(p[i]);
    for (size_t i = 0; i < 20000; i++) small[i] = malloc(100 + i % 5000);
    for (int i = 0; i < 20000; i++) free(small[i]);
    malloc_trim(0);
}

/* A child that shares the memory may end at any moment: the helper must not end with it while it holds a lock. */
static void sharing_child_ends(void) { in_children(share_and_end, trial_ms(8000), 0); }

/* The only thread of a process ends without exit: the process ends at once, with that thread's status. */
static void check_end(pid_t child, long start) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_AT(WIFEXITED(status) && WEXITSTATUS(status) == 7, status);
    CHECK_AT(now_ms() - start < 10000, now_ms() - start);
}
static int fill_and_return(void *unused) {
    fill_and_free(40, 1 << 20);
    return unused ? 7 : 1;
}
static void clone_function_returns(void) {
    enum { STACK = 1 << 20 };
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    long start = now_ms();
    check_end(clone(fill_and_return, stack + STACK, SIGCHLD, &start), start);
}
static void first_thread_exits(void) {
    long start = now_ms();
    pid_t child = fork();
    if (child == 0) {
        fill_and_return(NULL);
        syscall(SYS_exit, 7);
    }
    check_end(child, start);
}

/* A thread that makes a handshake loses its processor meanwhile: the thread whose heap it uses does not wait for it. Run
   where handshakes take long. */
static void long_handshake(void) {
    enum { BLOCKS = 20000, LONGEST_MS = 700 };
    static char *block[BLOCKS];
    long slowest = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++)
            if (!block[i]) memset(block[i] = malloc(500 + (size_t)i * 7919 % 3000), round, 100);
        for (int i = 0; i < BLOCKS; i++) {
            if (i % 7 == 0) continue;
            free(block[i]);
            block[i] = NULL;
        }
        for (long last = now_ms(), end = last + 3000, now; last < end; last = now) {
            usleep(1000);
            long start = now_ms();
            char *p = malloc(100 + (size_t)start % 500);
            CHECK(p);
            p[0] = 1;
            free(p);
            now = now_ms();
            if (now - start > slowest) slowest = now - start;
        }
    }
    printf("the slowest call took %ld ms\n", slowest);
    if (strict()) CHECK_AT(slowest < LONGEST_MS, slowest);
    for (int i = 0; i < BLOCKS; i++) CHECK(!block[i] || block[i][0] <= 2);
}

/* A helper that gets no processor: the threads that free memory give it back. Run where the helper is late. */
static void helper_without_processor(void) {
    char *block[64];
    for (int i = 0; i < 64; i++) block[i] = filled(1 << 20);
    for (int i = 0; i < 64; i++) free(block[i]);
    for (long start = now_ms(); strict() && status_kib("VmRSS:") > 16 << 10; nap(10)) {
        fill_and_free(8, 1 << 20);
        CHECK_AT(now_ms() - start < 8000, status_kib("VmRSS:"));
    }
}

/* Threads that still have root's rights, found through a file opened before. */
static int root_threads(int tasks) {
    DIR *dir = fdopendir(dup(tasks));
    CHECK(dir);
    rewinddir(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], text[4096];
        snprintf(path, sizeof path, "%s/status", entry->d_name);
        int file = entry->d_name[0] == '.' ? -1 : openat(tasks, path, O_RDONLY);
        ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0) close(file);
        if (n <= 0) continue;
        text[n] = 0;
        count += strstr(text, "\nUid:\t0") != NULL;
    }
    closedir(dir);
    return count;
}
/* A helper that root started must be gone soon after the program has given its rights up, however busy the program is.
   */
static void give_rights_up(int tasks) {
    CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    for (long end = now_ms() + 2000; now_ms() < end; nap(20)) fill_and_free(40, 1 << 20);
    CHECK(root_threads(tasks) == 0);
}
static int open_tasks(void) {
    if (geteuid()) SKIP("only root can become another user");
    int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    CHECK(tasks >= 0);
    return tasks;
}
static void rights_given_up_without_proc(void) {
    int tasks = open_tasks();
    char dir[] = "/tmp/neap-rootXXXXXX";
    CHECK(mkdtemp(dir));
    int above = open("/tmp", O_RDONLY | O_DIRECTORY), done = chroot(dir) || chdir("/");
    CHECK(unlinkat(above, dir + strlen("/tmp/"), AT_REMOVEDIR) == 0 && !done);
    fill_and_free(40, 1 << 20);
    nap(200);
    give_rights_up(tasks);
}
/* Run where the helper starts late. */
static void rights_given_up_at_start(void) {
    int tasks = open_tasks();
    fill_and_free(40, 1 << 20);
    give_rights_up(tasks);
}

/* The calls for which the filters of the two children below end a process. */
static void few_calls(void) {
    static const int UNUSUAL[] = {SYS_openat, SYS_ioctl, SYS_lseek, SYS_mincore, SYS_membarrier, SYS_process_madvise, SYS_clone};
    filter(none_of(UNUSUAL, sizeof UNUSUAL / sizeof *UNUSUAL, SECCOMP_RET_KILL_PROCESS));
}
/* Steps of the two children, which share their parent's memory. */
static atomic_int step;
static void reach(int n) {
    while (atomic_load(&step) < n) sched_yield();
}
static void *second_child(void *unused) {
    pid_t child = vfork();
    if (child == 0) {
        reach(1);
        few_calls();
        atomic_store(&step, 2);
        reach(3);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(status == 0, status);
    return unused;
}
/* Two children of vfork have filters; calls that neap must avoid are avoided in both. */
static void vfork_children_under_filters(void) {
    enum { BLOCKS = 64, SIZE = 300000 };
    static char *block[BLOCKS];
    pthread_t other = started(second_child, NULL);
    pid_t child = vfork();
    if (child == 0) {
        few_calls();
        atomic_store(&step, 1);
        reach(2);
        for (size_t size = SIZE; size < 6 * SIZE; size += SIZE / 4) {
            for (int i = 0; i < BLOCKS; i++) {
                block[i] = calloc(1, size);
                if (block[i]) memset(block[i], 1, size);
            }
            for (int i = 0; i < BLOCKS; i++) free(block[i]);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    atomic_store(&step, 3);
    pthread_join(other, NULL);
    CHECK_AT(status == 0, status);
}

static const struct test_case cases[] = {
    CASE(lowest_number_stays), CASE(filter_beside_start), CASE(unshare_behind_the_helper),
    CASE(clone_function_returns), CASE(first_thread_exits), CASE(rights_given_up_without_proc),
    CASE(rights_given_up_at_start), CASE(long_handshake), CASE(helper_without_processor),
    CASE(start_beside_options), CASE(blocks_passed_on),  CASE(errno_of_the_starter), CASE(starter_unmapped),
    CASE(under_filter),         CASE(filter_beside_questions), CASE(vfork_child_frees), CASE(sharing_child_ends),
    CASE(vfork_children_under_filters),
};
TEST_MAIN(cases)
