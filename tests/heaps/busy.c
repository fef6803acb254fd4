/* Threads that allocate and free, and then wait; prints the program's own figures ("live BLOCKS BYTES", with headers;
 * without blocks that have their own mapping), malloc_info, and a line "ready". For each "t" on its input it calls
 * malloc_trim; it ends with its input. Arguments: threads, blocks for each thread, and "other" where malloc is not
 * glibc's: then all blocks count, without headers, and only that line is printed; or "run": then threads go on
 * replacing blocks by others of the same size. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int malloc_info(int, FILE *) __attribute__((weak));
int malloc_trim(size_t) __attribute__((weak));

static int threads, blocks, other, run;
static pthread_barrier_t filled, done;
static _Atomic size_t live, bytes;
static char buffer[1 << 16];

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t size(uint64_t *state) {
    uint32_t kind = next(state) % 1000;
    if (kind < 900) return 1 + next(state) % 600;
    if (kind < 990) return 1 + next(state) % 6000;
    if (kind < 999) return 1 + next(state) % 60000;
    return 1 + next(state) % 400000;
}

static void *work(void *argument) {
    uint64_t state = (uintptr_t)argument * 7919 + 1;
    void **all = calloc(blocks, sizeof *all);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < blocks; i++) {
            if (all[i]) continue;
            size_t length = size(&state);
            all[i] = next(&state) % 64 ? malloc(length) : aligned_alloc(1 << (5 + next(&state) % 9), length);
            memset(all[i], 0x5a, length);
        }
        for (int i = 0; i < blocks; i++) {
            if (next(&state) % 10 < 6) {
                free(all[i]);
                all[i] = NULL;
            }
        }
    }
    for (int i = -1; i < blocks; i++) {
        void *block = i < 0 ? all : all[i];
        if (!block || (!other && ((size_t *)block)[-1] & 2)) continue;
        live++;
        bytes += malloc_usable_size(block) + (other ? 0 : sizeof(size_t));
    }
    pthread_barrier_wait(&filled);
    while (run) {
        void **block = &all[next(&state) % blocks];
        size_t length = *block ? malloc_usable_size(*block) : 0;
        if (!length || ((size_t *)*block)[-1] & 2) continue;
        free(*block);
        *block = malloc(length);
        memset(*block, 0x5a, length);
    }
    pthread_barrier_wait(&done);
    return all;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    threads = atoi(argv[1]);
    blocks = atoi(argv[2]);
    other = argc > 3 && !strcmp(argv[3], "other");
    run = argc > 3 && !strcmp(argv[3], "run");
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    pthread_barrier_init(&filled, NULL, threads + 1);
    pthread_barrier_init(&done, NULL, threads + 1);
    /* With mappings of their own: plain, aligned to less and more than an OS page, and to much more. */
    void *apart[] = {malloc(300000), aligned_alloc(64, 1 << 18), aligned_alloc(4096, 3 << 17), aligned_alloc(1 << 21, 300000)};
    for (int i = 0; i < 4; i++) memset(apart[i], 1, 200000);
    for (intptr_t i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    pthread_barrier_wait(&filled);
    printf("live %zu %zu\n", live, bytes);
    if (!other) malloc_info(0, stdout);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
        if (byte == 't') {
            malloc_trim(0);
            printf("trimmed\n");
            fflush(stdout);
        }
    }
    return 0;
}
