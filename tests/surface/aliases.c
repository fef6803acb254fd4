/* The __libc_ names: the same blocks as those of the plain names, whichever of them allocates and frees. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>

static void *find(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (!f && !strict()) SKIP("%s is not here", name);
    if (!f) dprintf(2, "%s is missing\n", name);
    CHECK(f);
    const char *want = getenv("NEAP_TEST_PRELOADED");
    Dl_info info;
    if (want && dladdr(f, &info) && strcmp(info.dli_fname, want) != 0) {
        if (!strict()) SKIP("%s comes from %s", name, info.dli_fname);
        dprintf(2, "%s comes from %s\n", name, info.dli_fname);
        CHECK(0);
    }
    return f;
}

static void libc_names(void) {
    void *(*xmalloc)(size_t) = find("__libc_malloc");
    void (*xfree)(void *) = find("__libc_free");
    void *(*xcalloc)(size_t, size_t) = find("__libc_calloc");
    void *(*xrealloc)(void *, size_t) = find("__libc_realloc");
    void *(*xmemalign)(size_t, size_t) = find("__libc_memalign");
    void *(*xvalloc)(size_t) = find("__libc_valloc");
    void *(*xpvalloc)(size_t) = find("__libc_pvalloc");
    for (size_t size = 0; size < (8u << 20); size = size * 5 / 3 + 1) {
        char *p[6] = {xmalloc(size),       xcalloc(1, size), xrealloc(NULL, size),
                      xmemalign(256, size), xvalloc(size),    xpvalloc(size)};
        for (int i = 0; i < 6; i++) {
            CHECK_AT(p[i], i);
            CHECK_AT(malloc_usable_size(p[i]) >= size, i);
            fill(p[i], size, i);
            p[i] = (i % 2 ? xrealloc : realloc)(p[i], size * 2 + 1);
            CHECK_AT(p[i], i);
            CHECK_FILL(p[i], size, i);
        }
        for (int i = 0; i < 6; i++) (i % 2 ? free : xfree)(p[i]);
        xfree(malloc(size));
        free(xmalloc(size));
    }
    errno = 0;
    CHECK(xmalloc(SIZE_MAX) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(xcalloc(SIZE_MAX, 3) == NULL && errno == ENOMEM);
}

/* Functions for which the C library itself allocates. */
static void blocks_of_the_c_library(void) {
    for (int i = 0; i < 2000; i++) {
        char *copy = strdup("a string"), *line = NULL, *text = NULL;
        size_t room = 0;
        CHECK(copy && strcmp(copy, "a string") == 0);
        CHECK(asprintf(&text, "%d %s", i, copy) > 0);
        FILE *file = fmemopen(text, strlen(text), "r");
        CHECK(file && getline(&line, &room, file) > 0);
        CHECK(strcmp(line, text) == 0);
        char *where = realpath("/proc/self/../self", NULL);
        char *here = getcwd(NULL, 0);
        CHECK(where && here);
        fclose(file);
        free(copy), free(line), free(text), free(where), free(here);
    }
}

static const struct test_case CASES[] = {CASE(libc_names), CASE(blocks_of_the_c_library)};
TEST_MAIN(CASES)
