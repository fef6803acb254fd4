/* Odd heaps of glibc, by argument: "brk" has memory of another user of brk in the middle of the heap; "nobrk" cannot use
 * brk; "two" has a second copy of the C library by dlmopen. Prints "live BLOCKS BYTES" and malloc_info as busy.c, then
 * waits for its input to end. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *all[20000];

static void fill(void *(*allocate)(size_t), void (*release)(void *), int from, int to) {
    for (int i = from; i < to; i++) {
        all[i] = allocate(100 + i * 7 % 900);
        memset(all[i], 1, 100);
    }
    for (int i = from; i < to; i += 3) {
        release(all[i]);
        all[i] = NULL;
    }
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (!strcmp(kind, "nobrk")) mmap(sbrk(0), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    fill(malloc, free, 0, 10000);
    if (!strcmp(kind, "brk")) memset(sbrk(300000), 0x77, 300000);
    if (!strcmp(kind, "two")) {
        void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
        void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(library, "malloc");
        void (*release)(void *) = (void (*)(void *))dlsym(library, "free");
        fill(allocate, release, 10000, 20000);
    } else {
        fill(malloc, free, 10000, 20000);
    }
    size_t live = 0, bytes = 0;
    for (int i = 0; i < 20000; i++) {
        if (!all[i]) continue;
        live++;
        bytes += malloc_usable_size(all[i]) + sizeof(size_t);
    }
    printf("live %zu %zu\n", live, bytes);
    malloc_info(0, stdout);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
