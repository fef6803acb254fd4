/* A running program opens neap, in each way that dlopen offers; neap's functions also get blocks of the C library. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>

static void (*their_free)(void *);
static void *(*their_malloc)(size_t), *(*their_realloc)(void *, size_t);

static void *use(void *arg) {
    uint64_t seed = 11;
    for (int i = 0; i < 1500; i++) {
        size_t size = next_random(&seed) % (i % 40 ? 5000 : 700000);
        char *theirs = their_malloc(size), *ours = malloc(size), *grown = malloc(size);
        CHECK(theirs && ours && grown);
        fill(theirs, size, i), fill(grown, size, i);
        theirs = their_realloc(theirs, size * 2 + 1);
        grown = their_realloc(grown, size + 100);
        CHECK_FILL(theirs, size, i);
        CHECK_FILL(grown, size, i);
        their_free(theirs);
        their_free(ours);
        their_free(grown);
    }
    return arg;
}

static void opened(int flags) {
    const char *path = getenv("LIBRARY");
    if (!path) SKIP("no library is under test");
    void *before = malloc(1000), *lib = dlopen(path, RTLD_NOW | flags);
    if (!lib) dprintf(2, "%s\n", dlerror());
    CHECK(lib);
    their_malloc = dlsym(lib, "malloc");
    their_realloc = dlsym(lib, "realloc");
    their_free = dlsym(lib, "free");
    CHECK(their_malloc && their_realloc && their_free && their_malloc != malloc);
    their_free(before);
    pthread_t t[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, use, NULL) == 0);
    use(NULL);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(dlclose(lib) == 0);
    free(malloc(100));
}

static void local(void) { opened(RTLD_LOCAL); }
static void local_deepbind(void) { opened(RTLD_LOCAL | RTLD_DEEPBIND); }
static void global(void) { opened(RTLD_GLOBAL); }
static void global_deepbind(void) { opened(RTLD_GLOBAL | RTLD_DEEPBIND); }

/* A plug-in that contains an allocator, bound to itself: its blocks stay its own. */
static void plugin_with_allocator(void) {
    const char *path = getenv("SECOND");
    CHECK(path);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!lib) dprintf(2, "%s\n", dlerror());
    CHECK(lib);
    void *(*make)(size_t) = dlsym(lib, "make");
    void (*unmake)(void *) = dlsym(lib, "unmake");
    for (size_t size = 0; size < 100000; size = size * 4 / 3 + 1) {
        char *theirs = make(size), *ours = malloc(size);
        fill(theirs, size, size), fill(ours, size, size + 1);
        CHECK_FILL(theirs, size, size);
        CHECK_FILL(ours, size, size + 1);
        unmake(theirs);
        free(ours);
    }
    CHECK(dlclose(lib) == 0);
}

static const struct test_case CASES[] = {
    CASE(local), CASE(local_deepbind), CASE(global), CASE(global_deepbind), CASE(plugin_with_allocator),
};
TEST_MAIN(CASES)
