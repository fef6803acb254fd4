/* A program without neap opens and closes a plugin that has neap inside (PLUGIN). What neap has given to the system and
 * to the C library must not lead into code that is gone: helper, thread key, fork handlers. */
#include "check.h"
#include <dlfcn.h>
#include <sys/wait.h>

typedef const unsigned char *(*task_fn)(size_t);
static task_fn task;
static const unsigned char *kept;
enum { BLOCKS = 3000, THREADS = 4 };

static void *open_library(const char *path, const char *function) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) dprintf(2, "%s\n", dlerror());
    CHECK(library);
    *(void **)&task = dlsym(library, function);
    CHECK(task);
    return library;
}

static void run_task(size_t count) {
    kept = task(count);
    CHECK(kept);
}

static void close_library(void *library) {
    CHECK(dlclose(library) == 0);
    for (int i = 0; i < 1000; i++) CHECK_AT(kept[i] == (unsigned char)(BLOCKS + 1), i); /* the block stays */
}

static pthread_barrier_t done, gone;
static void *worker(void *arg) {
    CHECK(task(BLOCKS));
    pthread_barrier_wait(&done);
    pthread_barrier_wait(&gone);
    return arg;
}

/* Opens, uses and closes the plugin in a pool of threads that outlives it. */
static void round_of_threads(void) {
    pthread_t threads[THREADS];
    void *library = open_library(getenv("PLUGIN"), "task");
    CHECK(!pthread_barrier_init(&done, NULL, THREADS + 1) && !pthread_barrier_init(&gone, NULL, THREADS + 1));
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, worker, NULL) == 0);
    run_task(BLOCKS);
    pthread_barrier_wait(&done);
    close_library(library);
    pthread_barrier_wait(&gone);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void threads_end_later(void) { round_of_threads(); }

static void helper_goes_on(void) {
    long own = status_kib("Threads:"); /* an emulator has threads too */
    void *library = open_library(getenv("PLUGIN"), "task");
    run_task(BLOCKS);
    close_library(library);
    CHECK_AT(status_kib("Threads:") == own + 1, status_kib("Threads:"));
    for (int i = 0; i < 2000 && status_kib("Threads:") > own; i++) usleep(10 * 1000);
    CHECK_AT(status_kib("Threads:") == own, status_kib("Threads:")); /* the helper has ended */
    long rss = status_kib("VmRSS:");
    CHECK_AT(rss < 8192, rss); /* it has given the 8 MiB and the small blocks back */
}

static void forks_later(void) {
    void *library = open_library(getenv("PLUGIN"), "task");
    run_task(BLOCKS);
    close_library(library);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) _exit(7);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
}

static void loads_200_times(void) {
    long size = 0, rss = 0, own = status_kib("Threads:");
    for (int i = 0; i < 200; i++) {
        round_of_threads();
        if (i == 20) size = status_kib("VmSize:"), rss = status_kib("VmRSS:");
    }
    size = status_kib("VmSize:") - size;
    rss = status_kib("VmRSS:") - rss;
    CHECK_AT(size < 256 << 10, size);
    CHECK_AT(rss < 32 << 10, rss);
    CHECK_AT(status_kib("Threads:") <= own + 1, status_kib("Threads:"));
}

/* The program opens another library (OUTER) that needs the plugin. */
static void needed_by_another(void) {
    void *library = open_library(getenv("OUTER"), "by_another");
    task = ((task_fn(*)(void))task)();
    run_task(BLOCKS);
    close_library(library);
    usleep(1000 * 1000);
    CHECK(dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_NOLOAD));
}

/* Under a relative name, by which it could not be opened later. */
static void by_relative_name(void) {
    char *path = strdup(getenv("PLUGIN")), *name = strrchr(path, '/');
    *name = 0;
    CHECK(chdir(path) == 0);
    *--name = '.', name[1] = '/';
    void *library = open_library(name, "task");
    CHECK(chdir("/") == 0);
    run_task(BLOCKS);
    close_library(library);
    usleep(1000 * 1000);
}

/* With a C library of its own. */
static void in_a_namespace(void) {
    void *library = dlmopen(LM_ID_NEWLM, getenv("PLUGIN"), RTLD_NOW);
    CHECK(library);
    *(void **)&task = dlsym(library, "task");
    run_task(BLOCKS);
    close_library(library);
    usleep(1000 * 1000);
}

static void stays_open(void) {
    open_library(getenv("PLUGIN"), "task");
    run_task(BLOCKS);
    usleep(1000 * 1000);
}

static const struct test_case CASES[] = {
    CASE(threads_end_later), CASE(helper_goes_on),   CASE(forks_later),    CASE(loads_200_times),
    CASE(needed_by_another), CASE(by_relative_name), CASE(in_a_namespace), CASE(stays_open),
};
TEST_MAIN(CASES)
