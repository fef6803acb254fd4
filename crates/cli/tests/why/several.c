/* Several allocators in one process: the C library's, and each library that is named in an argument, opened on its own.
   Each gets blocks, frees a third, and takes two ninths again, more than caches of threads hold: so these are nearly empty.
   Prints its process, a line "LIBRARY BYTES" for each (glibc's with headers), then "done"; ends with its input. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { MANY = 90000, PART = MANY / 3 };
static void *blocks[8][MANY];

static size_t use(void *library, void **blocks, size_t header) {
    void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(library, "malloc");
    void (*release)(void *) = (void (*)(void *))dlsym(library, "free");
    size_t (*usable)(void *) = (size_t (*)(void *))dlsym(library, "malloc_usable_size");
    size_t bytes = 0;
#define SIZE(i) (128 << (i) / PART)
    for (int i = 0; i < MANY; i++) memset(blocks[i] = allocate(SIZE(i)), 1, SIZE(i));
    for (int i = 0; i < MANY; i++) {
        if (i % PART < PART / 3) release(blocks[i]);
    }
    for (int i = 0; i < MANY; i++) {
        if (i % PART < PART / 9 * 2) memset(blocks[i] = allocate(SIZE(i)), 1, SIZE(i));
        if (i % PART < PART / 9 * 2 || i % PART >= PART / 3) bytes += usable(blocks[i]) + header;
    }
    return bytes;
}

int main(int argc, char **argv) {
    printf("%d\n", getpid());
    void *c = dlopen("libc.so.6", RTLD_NOW);
    printf("glibc %zu\n", use(c, blocks[0], sizeof(size_t)));
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        printf("%s %zu\n", argv[i], use(library, blocks[i], 0));
    }
    printf("done\n");
    fflush(stdout);
    for (char byte; read(0, &byte, 1) > 0;) {}
    return 0;
}
