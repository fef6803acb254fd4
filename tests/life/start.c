/* The first malloc at unusual moments, and the last ones after main returned. */
#include "check.h"
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <sys/personality.h>

static const char *chosen = "";
static char *early, *constructed;

static char *some(size_t size, int seed) {
    char *p = malloc(size);
    CHECK(p);
    fill(p, size, seed);
    return p;
}

/* Runs before the constructor of any library, the preloaded one included. */
static void before_all(int argc, char **argv, char **environment) {
    (void)environment;
    if (argc > 1) chosen = argv[1];
    if (strcmp(chosen, "preinit") == 0) {
        early = some(100, 1);
        free(calloc(10, 10));
        free(some(1 << 20, 2));
    }
}
__attribute__((section(".preinit_array"), used)) static void (*const PREINIT)(int, char **, char **) = before_all;

__attribute__((constructor(101))) static void first_constructor(void) {
    if (strcmp(chosen, "constructor") == 0) {
        constructed = some(5000, 3);
        free(some(10, 4));
    }
}

static void late_work(const char *where) {
    static char *kept[100];
    for (int i = 0; i < 100; i++) kept[i] = some(i * 977, i);
    for (int i = 0; i < 100; i += 2) {
        CHECK_FILL(kept[i], i * 977, i);
        free(kept[i]);
    }
    kept[1] = realloc(kept[1], 1 << 20);
    CHECK(kept[1]);
    dprintf(1, "%s ran\n", where);
}
__attribute__((destructor(101))) static void last_destructor(void) {
    if (strcmp(chosen, "after_main") == 0) late_work("last destructor");
}
__attribute__((destructor)) static void a_destructor(void) {
    if (strcmp(chosen, "after_main") == 0) late_work("destructor");
}
static void at_exit(void) { late_work("atexit handler"); }
static void at_quick(void) {
    late_work("quick_exit handler");
    dprintf(1, "ok\n");
}

static void preinit(void) {
    CHECK(early);
    CHECK_FILL(early, 100, 1);
    free(early);
}

static void constructor(void) {
    CHECK(constructed);
    CHECK_FILL(constructed, 5000, 3);
    constructed = realloc(constructed, 10000);
    CHECK_FILL(constructed, 5000, 3);
    free(constructed);
}

static void *thread_first(void *arg) {
    char *p = some(1000, 5);
    CHECK_FILL(p, 1000, 5);
    return arg ? p : NULL;
}
static void pthread_create_first(void) {
    pthread_t t;
    void *p;
    CHECK(pthread_create(&t, NULL, thread_first, &t) == 0);
    CHECK(pthread_join(t, &p) == 0);
    CHECK_FILL(p, 1000, 5);
    free(p);
}

static void dlopen_first(void) {
    void *lib = dlopen(getenv("DSO"), RTLD_NOW);
    if (!lib) dprintf(2, "%s\n", dlerror());
    CHECK(lib);
    char *(*made)(void) = (char *(*)(void))dlsym(lib, "made_by_constructor");
    CHECK(made);
    CHECK_FILL(made(), 300, 9);
    CHECK(dlclose(lib) == 0);
}

static void after_main(void) {
    CHECK(atexit(at_exit) == 0);
    some(100, 1);
}

static void at_quick_exit_(void) {
    CHECK(at_quick_exit(at_quick) == 0);
    quick_exit(0);
}

/* main returns while others allocate: the exit must not crash. */
static void *busy(void *arg) {
    uint64_t seed = (uintptr_t)arg + 1;
    for (;;) free(realloc(malloc(next_random(&seed) % 5000 + 1), next_random(&seed) % 100000 + 1));
    return NULL;
}
static void exit_while_busy(void) {
    for (intptr_t i = 0; i < 6; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, busy, (void *)i) == 0);
    }
    usleep(50000);
    CHECK(atexit(at_exit) == 0);
}

/* The main thread ends, the others go on. */
static void *outlive(void *arg) {
    (void)arg;
    usleep(50000);
    for (int i = 0; i < 1000; i++) free(some(i * 50, i));
    dprintf(1, "ok\n");
    _exit(0);
}
static void main_thread_exits(void) {
    pthread_t t;
    free(some(100, 1));
    CHECK(pthread_create(&t, NULL, outlive, NULL) == 0);
    pthread_exit(NULL);
}

/* The first line of /proc/self/maps is the program's, also without randomised addresses. */
static void program_lies_first(void) {
    char line[4200], path[4096] = "";
    free(some(100, 1));
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps && fgets(line, sizeof line, maps));
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    printf("%s", line);
    CHECK(strstr(line, path));
    fclose(maps);
    if (!getenv("ADDRESSES_ARE_FIXED") && personality(0xffffffff) != -1) {
        CHECK(setenv("ADDRESSES_ARE_FIXED", "1", 1) == 0);
        if (personality(ADDR_NO_RANDOMIZE) == -1) SKIP("personality is refused: errno %d", errno);
        execl(path, path, "program_lies_first", NULL);
        CHECK(!"exec");
    }
}

static const struct test_case CASES[] = {
    CASE(preinit),    CASE(constructor),    CASE(pthread_create_first), CASE(dlopen_first),
    CASE(after_main), CASE(at_quick_exit_), CASE(exit_while_busy),      CASE(main_thread_exits),
    CASE(program_lies_first),
};
TEST_MAIN(CASES)
