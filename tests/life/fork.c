/* fork and related calls, while threads allocate. */
#include "check.h"
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;
static atomic_int stop;

/* Rounds of a case: on slow machines the environment sets a percentage. */
static int rounds(int all) {
    const char *percent = getenv("NEAP_TEST_PERCENT");
    return percent ? all * atoi(percent) / 100 : all;
}

static char *some(size_t size, int seed) {
    char *p = malloc(size);
    CHECK(p);
    fill(p, size, seed);
    return p;
}

/* Allocates until it is stopped, with blocks of every kind in flight. */
static void *busy(void *arg) {
    uint64_t seed = (uintptr_t)arg * 3 + 1;
    void *p[64] = {0};
    while (!stop) {
        uint64_t r = next_random(&seed);
        free(p[r % 64]);
        size_t size = (r >> 8) % 2000;
        if ((r >> 32) % 64 == 0) size *= 100;
        p[r % 64] = (r >> 40) % 8 ? malloc(size) : calloc(1, size);
        CHECK(p[r % 64]);
    }
    for (int i = 0; i < 64; i++) free(p[i]);
    return NULL;
}
static void *child_thread(void *arg) {
    for (int i = 0; i < 200; i++) free(some(i * 30, (int)(intptr_t)arg));
    return some(100, 1);
}
static void wait_ok(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_AT(status == 0, status);
}

/* What a child must be able to do. */
static void child_life(char **inherited, int count, int depth) {
    alarm(120);
    for (int i = 0; i < count; i++) {
        CHECK_FILL(inherited[i], i * 50, i);
        if (i % 3 == 0) inherited[i] = realloc(inherited[i], i * 50 + 400);
        CHECK(inherited[i]);
        if (i % 3 == 0) CHECK_FILL(inherited[i], i * 50, i);
        free(inherited[i]);
    }
    for (int i = 0; i < 300; i++) free(some(i * 70, i));
    pthread_t t[2];
    for (intptr_t i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, child_thread, (void *)i) == 0);
    for (int i = 0; i < 2; i++) {
        void *p;
        CHECK(pthread_join(t[i], &p) == 0);
        CHECK_FILL(p, 100, 1);
        free(p);
    }
    if (depth > 0) {
        char *own[20];
        for (int i = 0; i < 20; i++) own[i] = some(i * 50, i);
        pid_t pid = fork();
        if (pid == 0) child_life(own, 20, depth - 1);
        wait_ok(pid);
        for (int i = 0; i < 20; i++) CHECK_FILL(own[i], i * 50, i);
    }
    _exit(0);
}

static void while_threads_allocate(void) {
    pthread_t t[4];
    char *mine[60];
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)i) == 0);
    for (int round = 0; round < rounds(150); round++) {
        for (int i = 0; i < 60; i++) mine[i] = some(i * 50, i);
        pid_t pid = fork();
        if (pid == 0) child_life(mine, 60, 1);
        for (int i = 0; i < 60; i++) free(mine[i]);
        wait_ok(pid);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

static void *forker(void *arg) {
    for (int round = 0; round < rounds(40); round++) {
        char *mine[20];
        for (int i = 0; i < 20; i++) mine[i] = some(i * 50, i);
        pid_t pid = fork();
        if (pid == 0) child_life(mine, 20, 0);
        for (int i = 0; i < 20; i++) free(mine[i]);
        wait_ok(pid);
    }
    return arg;
}
static void from_four_threads(void) {
    pthread_t t[4];
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, forker, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Handlers of pthread_atfork may allocate, whenever they were registered. */
static char *held[8];
static int holds;
static void prepare(void) { held[holds++] = some(1000, 1); }
static void release(void) {
    char *p = held[--holds];
    CHECK_FILL(p, 1000, 1);
    free(p);
    free(some(100, 2));
}
static void register_handlers(void) { CHECK(pthread_atfork(prepare, release, release) == 0); }
static void handlers_allocate(void) {
    for (int i = 0; i < 3; i++) register_handlers();
    while_threads_allocate();
}

/* Forks a few hundred times; `alarm` ends a child that hangs. */
static void fork_often(void) {
    for (int round = 0; round < rounds(400); round++) {
        alarm(30);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(30);
            free(some(100000, 1));
            FILE *f = fopen("/dev/null", "w");
            CHECK(f && fprintf(f, "%d", round) > 0);
            /* glibc 2.43 may lock another stream. */
            fflush(NULL);
            CHECK(fclose(f) == 0);
            _exit(0);
        }
        wait_ok(pid);
    }
    stop = 1;
    alarm(0);
}

/* A library with a lock of its own, under which its threads allocate; its fork handlers take the lock. */
static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;
static void lock_library(void) { CHECK(pthread_mutex_lock(&library) == 0); }
static void unlock_library(void) { CHECK(pthread_mutex_unlock(&library) == 0); }
static void *busy_in_library(void *arg) {
    while (!stop) {
        lock_library();
        char *p[40];
        for (int i = 0; i < 40; i++) CHECK((p[i] = malloc(40000 + i * 30000)));
        for (int i = 0; i < 40; i++) free(p[i]);
        unlock_library();
    }
    return arg;
}
static void early_handlers_lock(void) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, busy_in_library, NULL) == 0);
    fork_often();
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Threads that read lines, so that the C library allocates while it holds a stream's lock, and one that flushes all
   streams. */
static void *read_lines(void *arg) {
    FILE *f = tmpfile();
    CHECK(f);
    for (int line = 0; line < 8; line++) {
        for (int i = 0; i < 200000; i++) CHECK(fputc('x', f) == 'x');
        CHECK(fputc('\n', f) == '\n');
    }
    while (!stop) {
        char *line = NULL;
        size_t size = 0;
        rewind(f);
        while (getline(&line, &size, f) > 0) {
            free(line);
            line = NULL;
            size = 0;
        }
        free(line);
    }
    CHECK(fclose(f) == 0);
    return arg;
}
static void *flush_all(void *arg) {
    while (!stop) CHECK(fflush(NULL) == 0);
    return arg;
}
static void while_streams_are_flushed(void) {
    pthread_t t[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, i ? read_lines : flush_all, NULL) == 0);
    fork_often();
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Handlers that are registered before the constructor of any other library runs. */
static void before_all(int argc, char **argv, char **environment) {
    (void)environment;
    if (argc > 1 && strcmp(argv[1], "early_handlers_allocate") == 0) register_handlers();
    if (argc > 1 && strcmp(argv[1], "early_handlers_lock") == 0)
        CHECK(pthread_atfork(lock_library, unlock_library, unlock_library) == 0);
}
__attribute__((section(".preinit_array"), used)) static void (*const PREINIT)(int, char **, char **) = before_all;
static void early_handlers_allocate(void) { while_threads_allocate(); }

/* A chain of forks, each child the parent of the next. */
static void chain(void) {
    char *p = some(5000, 1);
    for (int depth = 0; depth < 100; depth++) {
        pid_t pid = fork();
        if (pid > 0) {
            int status;
            CHECK(waitpid(pid, &status, 0) == pid);
            CHECK_AT(status == 0, depth);
            if (depth > 0) _exit(0);
            return;
        }
        CHECK(pid == 0);
        CHECK_FILL(p, 5000, 1);
        free(p);
        p = some(5000, 1);
    }
    _exit(0);
}

static void vfork_exec(void) {
    pthread_t t[2];
    for (intptr_t i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)i) == 0);
    for (int i = 0; i < 50; i++) {
        char *p = some(100, 1);
        pid_t pid = vfork();
        if (pid == 0) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        wait_ok(pid);
        CHECK_FILL(p, 100, 1);
        free(p);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

static void spawn_system_popen(void) {
    pthread_t t[2];
    for (intptr_t i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)i) == 0);
    for (int i = 0; i < 30; i++) {
        char *args[] = {"sh", "-c", "exit 0", NULL};
        pid_t pid;
        CHECK(posix_spawn(&pid, "/bin/sh", NULL, NULL, args, environ) == 0);
        wait_ok(pid);
        CHECK(system("x=$(echo a b c); test \"$x\" = 'a b c'") == 0);
        char line[64];
        FILE *f = popen("echo from the shell", "r");
        CHECK(f && fgets(line, sizeof line, f) && strcmp(line, "from the shell\n") == 0);
        CHECK(pclose(f) == 0);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Threads that sleep cost a fork nothing but their page tables: to write to something of each of them would take a page
   fault each, as the child shares it. */
static pthread_barrier_t idle;
static void *sleeper(void *arg) {
    for (int i = 0; i < 20; i++) free(some(100, i)); /* the first blocks of a thread may come from a shared heap */
    for (int i = 0; i < 2; i++) {
        char *p = some(1000, 1), *q = some(100, 2);
        pthread_barrier_wait(&idle);
        pthread_barrier_wait(&idle);
        CHECK_FILL(p, 1000, 1);
        free(p);
        CHECK_FILL(q, 100, 2);
        free(q);
    }
    return arg;
}
static long faults(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}
static void of_idle_threads(void) {
    enum { THREADS = 300 };
    static pthread_t thread[THREADS];
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 256 << 10) == 0);
    CHECK(pthread_barrier_init(&idle, NULL, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], &attr, sleeper, NULL) == 0);
    for (int round = 0; round < 2; round++) {
        pthread_barrier_wait(&idle);
        usleep(200000);
        for (int i = 0; i < 3; i++) {
            long before = faults();
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                free(some(100000, 3));
                _exit(0);
            }
            long after = faults();
            CHECK_AT(i == 0 || after - before < THREADS / 2, after - before);
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        pthread_barrier_wait(&idle);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static const struct test_case CASES[] = {
    CASE(of_idle_threads),
    CASE(while_threads_allocate), CASE(from_four_threads), CASE(handlers_allocate),
    CASE(early_handlers_allocate), CASE(early_handlers_lock), CASE(while_streams_are_flushed),
    CASE(chain),                  CASE(vfork_exec),        CASE(spawn_system_popen),
};
TEST_MAIN(CASES)
