/* Heaps of one shape, by argument: "frees" has freed most of its blocks, large and small ones, in several arenas;
 * "caches" has threads whose caches are full; "fastbins" has freed many small blocks of one size, which glibc up to
 * 2.42 keeps apart; "bins" has free blocks of every size that has a list; "trimmed" has called malloc_trim after frees.
 * Prints "live BLOCKS BYTES", mallinfo2 where the C library has it, and malloc_info as busy.c does, then waits for its
 * input to end. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 8, MANY = 20000 };
#ifdef __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
#define HAS_MALLINFO2
#endif
#endif

static pthread_barrier_t filled;
static void *all[THREADS][MANY];
static const char *kind;

static void fill(void **blocks, int count, size_t size, int step) {
    for (int i = 0; i < count; i++) memset(blocks[i] = malloc(size + i % step), 1, size);
}

static void empty(void **blocks, int from, int count, int keep) {
    for (int i = from; i < count; i++) {
        if (keep && i % keep == 0) continue;
        free(blocks[i]);
        blocks[i] = NULL;
    }
}

/* Free blocks of each size for which glibc has a bin, in steps of 16, then of 64, 512, ..., between live blocks. */
static void bins(void **blocks) {
    static const size_t steps[][2] = {{16, 1024}, {64, 3136}, {512, 10752}, {4096, 45056}, {32768, 163840}, {262144, 1048576}};
    int count = 0;
    mallopt(M_MMAP_THRESHOLD, 8 << 20);
    for (size_t kind = 0, size = 32; kind < 6; kind++) {
        for (; size < steps[kind][1]; size += steps[kind][0]) {
            for (int i = 0; i < 16; i++) {
                blocks[count++] = malloc(size - 8);
                blocks[count++] = malloc(24);
            }
        }
    }
    for (int i = 0; i < count; i += 2) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
    /* Makes glibc sort the free blocks, those in fastbins too. */
    free(malloc(4 << 20));
}

static void *work(void *argument) {
    void **mine = all[(size_t)argument];
    if (!strcmp(kind, "bins")) {
        if (argument == NULL) bins(mine);
        pthread_barrier_wait(&filled);
        pause();
    }
    if (!strcmp(kind, "caches")) {
        /* 7 of each cached size are freed; the others stay. */
        for (int size = 0; size < 64; size++) {
            fill(mine + 16 * size, 14, 24 + 16 * size - 8, 1);
            empty(mine + 16 * size, 0, 7, 0);
        }
    } else if (!strcmp(kind, "fastbins")) {
        fill(mine, MANY, 40, 1);
        empty(mine, MANY / 10, MANY, 0);
    } else {
        fill(mine, MANY / 2, 100, 4000);
        for (int i = MANY / 2; i < MANY / 2 + 100; i++) memset(mine[i] = malloc(90000), 1, 90000);
        empty(mine, 0, MANY / 2, 50);
        empty(mine, MANY / 2, MANY / 2 + 100, 10);
    }
    pthread_barrier_wait(&filled);
    pause();
    return NULL;
}

int main(int argc, char **argv) {
    static char buffer[1 << 16];
    kind = argc > 1 ? argv[1] : "";
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    pthread_barrier_init(&filled, NULL, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    pthread_barrier_wait(&filled);
    if (!strcmp(kind, "trimmed")) malloc_trim(0);
    size_t live = 0, bytes = 0;
    for (int i = 0; i < THREADS * MANY; i++) {
        void *block = all[i / MANY][i % MANY];
        if (!block) continue;
        live++;
        bytes += malloc_usable_size(block) + sizeof(size_t);
    }
    printf("live %zu %zu\n", live, bytes);
#ifdef HAS_MALLINFO2
    struct mallinfo2 info = mallinfo2();
    printf("mallinfo2 %zu %zu %zu\n", info.uordblks, info.fordblks, info.fsmblks);
#endif
    malloc_info(0, stdout);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
