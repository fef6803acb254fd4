/* Libraries that come and go, and blocks that another allocator made. */
#include "check.h"
#include "filter.h"
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>

static void *open_dso(int flags) {
    void *lib = dlopen(getenv("DSO"), RTLD_NOW | flags);
    if (!lib) dprintf(2, "%s\n", dlerror());
    CHECK(lib);
    return lib;
}
typedef void *(*make_fn)(size_t);
typedef void *(*make_aligned_fn)(size_t, size_t);
typedef void (*unmake_fn)(void *);

static void load_1000_times(void) {
    void *kept[100];
    long before = 0;
    for (int i = 0; i < 1000; i++) {
        void *lib = open_dso(i % 2 ? RTLD_GLOBAL : 0);
        make_fn make = (make_fn)dlsym(lib, "make");
        ((void (*)(void))dlsym(lib, "touch_tls"))();
        void *p = make(i * 10);
        CHECK(p);
        fill(p, i * 10, i);
        CHECK(dlclose(lib) == 0);
        CHECK_FILL(p, i * 10, i); /* outlives the library */
        if (i < 100) kept[i] = p;
        else free(p);
        dlerror();
        CHECK(dlopen("/nonexistent/lib.so", RTLD_NOW) == NULL);
        if (i == 300) before = status_kib("VmRSS:");
    }
    for (int i = 0; i < 100; i++) {
        CHECK_FILL(kept[i], i * 10, i);
        free(kept[i]);
    }
    long grown = status_kib("VmRSS:") - before;
    CHECK_AT(grown < 8192, grown);
}

static void *load_loop(void *arg) {
    for (int i = 0; i < 150; i++) {
        void *lib = open_dso(0);
        ((void (*)(void))dlsym(lib, "touch_tls"))();
        free(((make_fn)dlsym(lib, "make"))(500));
        CHECK(dlclose(lib) == 0);
    }
    return arg;
}
static void load_in_threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, load_loop, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Frees, resizes and measures blocks made by `make`, between blocks of our own. */
static void use_foreign(make_fn make, make_aligned_fn make_aligned) {
    uint64_t seed = 3;
    for (int round = 0; round < 2000; round++) {
        size_t size = next_random(&seed) % (round % 20 ? 4000 : 900000);
        char *own = malloc(size), *p = round % 7 ? make(size) : make_aligned(256, size);
        CHECK(own && p);
        fill(p, size, round);
        CHECK_AT(malloc_usable_size(p) >= size, size);
        if (round % 3 == 0) {
            size_t wanted = next_random(&seed) % 9000 + 1;
            p = realloc(p, wanted);
            CHECK_AT(p, wanted);
            CHECK_FILL(p, wanted < size ? wanted : size, round);
        }
        errno = EDOM;
        free(p);
        CHECK_AT(errno == EDOM, size);
        free(own);
    }
}

static void check_foreign(void *malloc_there) {
    Dl_info info;
    CHECK(dladdr(malloc_there, &info));
    if (getenv("NEAP_TEST_PRELOADED") && strstr(info.dli_fname, "libc.so") == NULL) {
        dprintf(2, "malloc is that of %s\n", info.dli_fname);
        CHECK(!"the library's malloc is the C library's");
    }
}

/* RTLD_DEEPBIND looks malloc up in the C library first. The program, the C library and the library free each other's
 * blocks. An earlier block of the C library's own malloc still goes there. */
static void *deepbind_loop(void *arg) {
    make_fn made = (make_fn)dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "malloc");
    void *old[2] = {made(100), made(300000)}, *lib = open_dso(RTLD_DEEPBIND);
    CHECK(old[0] && old[1]);
    CHECK(((void *(*)(void))dlsym(lib, "malloc_address"))() == dlsym(RTLD_DEFAULT, "malloc"));
    make_fn make = (make_fn)dlsym(lib, "make");
    unmake_fn unmake = (unmake_fn)dlsym(lib, "unmake");
    use_foreign(make, (make_aligned_fn)dlsym(lib, "make_aligned"));
    char *(*copy)(const char *) = (char *(*)(const char *))dlsym(lib, "copy");
    for (size_t size = 1; size < 5000000; size = size * 4 / 3 + 1) {
        char *own = malloc(size), *copied;
        CHECK(own);
        memset(own, 'x', size);
        own[size - 1] = 0;
        CHECK_AT((copied = copy(own)) && strlen(copied) == size - 1, size);
        unmake(own);
        unmake(copied);
        free(make(size));
    }
    free(old[0]);
    free(old[1]);
    CHECK(dlclose(lib) == 0);
    return arg;
}
static void deepbind(void) { deepbind_loop(NULL); }
static void deepbind_in_threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, deepbind_loop, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Blocks of the C library where the program's own filter ends it for a query that the C library would not make. */
static void foreign_under_filter(void) {
    static const int UNUSUAL[] = {SYS_mincore, SYS_openat, SYS_getpid, SYS_gettid, SYS_rt_sigprocmask};
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    make_fn make = (make_fn)dlsym(libc, "malloc");
    check_foreign(make);
    make_aligned_fn make_aligned = (make_aligned_fn)dlsym(libc, "memalign");
    filter(none_of(UNUSUAL, sizeof UNUSUAL / sizeof *UNUSUAL, SECCOMP_RET_KILL_PROCESS));
    use_foreign(make, make_aligned);
}

/* Blocks straight from the C library, as in a program that looks malloc up itself. */
static void *foreign_loop(void *arg) {
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc);
    check_foreign(dlsym(libc, "malloc"));
    use_foreign((make_fn)dlsym(libc, "malloc"), (make_aligned_fn)dlsym(libc, "memalign"));
    return arg;
}
static void by_dlsym(void) { foreign_loop(NULL); }
/* The break cannot grow, so the C library's main heap lies in mappings. */
static void by_dlsym_without_break(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    void *behind = (void *)(((uintptr_t)sbrk(0) + page - 1) & -page);
    CHECK(mmap(behind, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == behind);
    foreign_loop(NULL);
}
static void by_dlsym_in_threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, foreign_loop, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* glibc's malloc initialises itself in its first call, without a lock: without neap the process has one thread then. If
 * two threads make that call at the same time, both count as one user of the main heap, and an assertion of glibc's
 * fails when the second one ends. So it must be initialised before a thread gets the function, which the blocks show:
 * the main heap is the first thread's, and the others' blocks lie in other heaps. */
#ifdef __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#else
#define FIRST_GLIBC "GLIBC_2.17"
#endif
static make_fn theirs;
static atomic_int awaited;
static void *first_use(void *arg) {
    enum { NOT_IN_MAIN_HEAP = 4 };
    awaited--;
    while (awaited) {}
    size_t *p = theirs(100);
    CHECK(p);
    CHECK_AT(p[-1] & NOT_IN_MAIN_HEAP, p[-1]);
    free(p);
    return arg;
}
static void use_first_in_threads(void) {
    pthread_t t[4];
    CHECK(theirs);
    awaited = 4;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, first_use, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}
static void by_dlsym_first_in_threads(void) {
    theirs = (make_fn)dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "malloc");
    use_first_in_threads();
}
/* The look-up searches the library, then the C library, which it needs. */
static void by_library_first_in_threads(void) {
    theirs = (make_fn)dlsym(open_dso(0), "malloc");
    use_first_in_threads();
}
/* Another malloc is in front of neap, so libraries opened this way get the C library's. */
static void deepbind_first_in_threads(void) {
#ifdef __GLIBC__
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD | RTLD_DEEPBIND);
    theirs = (make_fn)dlvsym(libc, "malloc", FIRST_GLIBC);
#endif
    use_first_in_threads();
}

/* RTLD_NEXT from the program finds the first library: the usual way of wrappers. */
static void by_rtld_next(void) {
    use_foreign((make_fn)dlsym(RTLD_NEXT, "malloc"), (make_aligned_fn)dlsym(RTLD_NEXT, "memalign"));
}

/* A second copy of everything: its blocks stay among themselves. */
static void dlmopen_namespace(void) {
    for (int round = 0; round < 8; round++) {
        void *lib = dlmopen(LM_ID_NEWLM, getenv("DSO"), RTLD_NOW);
        if (!lib) dprintf(2, "%s\n", dlerror());
        CHECK(lib);
        make_fn make = (make_fn)dlsym(lib, "make");
        unmake_fn unmake = (unmake_fn)dlsym(lib, "unmake");
        void *p[200], *own[200];
        for (int i = 0; i < 200; i++) {
            CHECK((p[i] = make(i * 900)) && (own[i] = malloc(i * 900)));
            fill(p[i], i * 900, i);
            fill(own[i], i * 900, i + 1);
        }
        for (int i = 0; i < 200; i++) {
            CHECK_FILL(p[i], i * 900, i);
            CHECK_FILL(own[i], i * 900, i + 1);
            unmake(p[i]);
            free(own[i]);
        }
        CHECK(dlclose(lib) == 0);
    }
}

/* The library under test itself, loaded late by a program with threads: its thread storage must still fit. */
static void *libs_malloc, *libs_free, *libs_realloc;
static pthread_barrier_t loaded;
static void *use_late(void *arg) {
    void *(*xmalloc)(size_t), (*xfree)(void *), *(*xrealloc)(void *, size_t);
    if (arg) pthread_barrier_wait(&loaded);
    xmalloc = (void *(*)(size_t))libs_malloc;
    xfree = (void (*)(void *))libs_free;
    xrealloc = (void *(*)(void *, size_t))libs_realloc;
    for (size_t size = 1; size < (32u << 20); size = size * 5 / 2) {
        char *p = xmalloc(size), *own = malloc(size);
        CHECK_AT(p && own, size);
        fill(p, size, 1);
        p = xrealloc(p, size * 2);
        CHECK_AT(p, size);
        CHECK_FILL(p, size, 1);
        xfree(p);
        free(own);
    }
    return arg;
}
static void library_loaded_late(void) {
    const char *path = getenv("LIBRARY");
    pthread_t early[4], late;
    if (!path) SKIP("no library is under test");
    pthread_barrier_init(&loaded, NULL, 5);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&early[i], NULL, use_late, &loaded) == 0);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) dprintf(2, "%s\n", dlerror());
    CHECK(lib);
    libs_malloc = dlsym(lib, "malloc");
    libs_free = dlsym(lib, "free");
    libs_realloc = dlsym(lib, "realloc");
    CHECK(libs_malloc && libs_free && libs_realloc);
    pthread_barrier_wait(&loaded);
    use_late(NULL);
    CHECK(pthread_create(&late, NULL, use_late, NULL) == 0 && pthread_join(late, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(early[i], NULL) == 0);
    CHECK(dlclose(lib) == 0);
    free(malloc(100));
    CHECK(pthread_create(&late, NULL, load_loop, NULL) == 0 && pthread_join(late, NULL) == 0);
}

/* Operators new of a library whose C++ library the program does not see. */
static void operators_of_a_plugin(void) {
    CHECK(!dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv"));
    void *lib = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    if (!lib) dprintf(2, "%s\n", dlerror());
    CHECK(lib);
    ((void (*)(void))dlsym(lib, "use_operators"))();
    CHECK(dlclose(lib) == 0);
}

static const struct test_case CASES[] = {
    CASE(load_1000_times), CASE(load_in_threads),     CASE(deepbind),          CASE(deepbind_in_threads),
    CASE(by_dlsym),        CASE(by_dlsym_in_threads), CASE(by_rtld_next),      CASE(foreign_under_filter),
    CASE(by_dlsym_without_break), CASE(by_dlsym_first_in_threads), CASE(by_library_first_in_threads),
    CASE(deepbind_first_in_threads),
    CASE(dlmopen_namespace), CASE(library_loaded_late), CASE(operators_of_a_plugin),
};
TEST_MAIN(CASES)
