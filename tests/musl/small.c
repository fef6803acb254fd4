/* The malloc family in a program on musl, dynamic or static. Without neap the first check fails: musl's blocks have
   exactly the requested length. */
#include "check.h"
#include <malloc.h>
#include <sys/wait.h>

static pthread_key_t key;

static void at_thread_end(void *block) {
    char *p = realloc(block, 3000);
    CHECK(p);
    CHECK_FILL(p, 1000, 7);
    free(p);
}

static void *mixed(void *arg) {
    char *kept[200] = {0};
    unsigned seed = (unsigned)(size_t)arg;
    char *last = malloc(1000);
    CHECK(last && pthread_setspecific(key, last) == 0);
    fill(last, 1000, 7);
    for (int i = 0; i < 40000; i++) {
        seed = seed * 1103515245 + 12345;
        int place = seed >> 16 & 127;
        size_t size = (seed >> 8) % (i % 100 ? 900 : 90000) + 1;
        free(kept[place]);
        kept[place] = malloc(size);
        CHECK(kept[place]);
        kept[place][0] = kept[place][size - 1] = 1;
    }
    for (int i = 0; i < 200; i++) free(kept[i]);
    return NULL;
}

static void threads(int count) {
    pthread_t t[32];
    for (int i = 0; i < count; i++) CHECK(pthread_create(&t[i], NULL, mixed, (void *)(size_t)i) == 0);
    for (int i = 0; i < count; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

static void *busy(void *stop) {
    while (!*(volatile int *)stop) free(malloc(5000));
    return NULL;
}

static void family(void) {
    char *p = malloc(100);
    CHECK(malloc_usable_size(p) > 100);
    fill(p, 100, 1);
    for (size_t size = 200; size < 8 << 20; size *= 2) {
        p = realloc(p, size);
        CHECK_FILL(p, 100, 1);
    }
    p = realloc(p, 0);
    CHECK(p);
    free(p);
    for (size_t size = 1; size < 1 << 20; size = size * 3 + 1) {
        p = calloc(size, 3);
        CHECK(p);
        for (size_t i = 0; i < size * 3; i++) CHECK_AT(p[i] == 0, i);
        memset(p, 1, size * 3);
        free(p);
    }
    for (size_t align = 16; align <= 1 << 21; align *= 2) {
        void *blocks[3] = {aligned_alloc(align, align), memalign(align, 100), NULL};
        CHECK(posix_memalign(&blocks[2], align, 5000) == 0);
        for (int i = 0; i < 3; i++) {
            CHECK_AT((size_t)blocks[i] % align == 0 && blocks[i], align);
            free(blocks[i]);
        }
    }
}

static void forks(void) {
    int stop = 0;
    pthread_t t[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, busy, &stop) == 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int size = 1; size < 100000; size *= 2) free(malloc(size));
            if (i % 10 == 0) threads(2);
            _exit(3);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

static void at_exit(void) {
    char *p = malloc(70000);
    CHECK(p);
    p[69999] = 1;
    free(p);
    dprintf(1, "ok\n");
}

int main(int count, char **arguments) {
    if (count > 1 && strcmp(arguments[1], "misuse") == 0) {
        char *volatile p = malloc(64);
        free(p);
        free(p);
        return 0;
    }
    CHECK(pthread_key_create(&key, at_thread_end) == 0);
    family();
    threads(32);
    forks();
    /* In the C library, by malloc. */
    char *text = NULL;
    CHECK(asprintf(&text, "%d", count) > 0);
    CHECK(malloc_usable_size(text) >= 16);
    free(strdup(text));
    free(text);
    CHECK(atexit(at_exit) == 0);
    return 0;
}
