/* Threads that allocate and free; then malloc_info on stdout, a line "ready", and it waits for its input to end.
 * Arguments: threads, blocks for each thread, and what to do last: "hold", "trim". */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int threads, blocks;
static pthread_barrier_t filled, done;
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
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&done);
    return all;
}

int main(int argc, char **argv) {
    threads = atoi(argv[1]);
    blocks = atoi(argv[2]);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    pthread_barrier_init(&filled, NULL, threads + 1);
    pthread_barrier_init(&done, NULL, threads + 1);
    for (intptr_t i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    pthread_barrier_wait(&filled);
    if (argc > 3 && !strcmp(argv[3], "trim")) malloc_trim(0);
    malloc_info(0, stdout);
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
