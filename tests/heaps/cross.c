/* Threads that free blocks of each other: half of its own, then half of the next one's. Prints "live BLOCKS BYTES" and
 * "ready", then waits for its input to end. Arguments: threads, blocks for each; and "slabs": then blocks have 1000
 * bytes, and of each 500 blocks in a row 50 stay, so that most slabs are free. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int threads, blocks, slabs;
static pthread_barrier_t filled, done;
static void ***all;

static void *work(void *argument) {
    size_t number = (size_t)argument, state = number;
    void **mine = all[number], **next = all[(number + 1) % threads];
    for (int i = 0; i < blocks; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t length = slabs ? 1000 : state >> 60 ? 8 + (state >> 33) % 1000 : 1000 + (state >> 33) % 30000;
        memset(mine[i] = malloc(length), 0x5a, length);
    }
    for (int i = 0; i < blocks; i++) {
        if (slabs ? i % 500 < 50 : i % 2) continue;
        free(mine[i]);
        mine[i] = NULL;
    }
    pthread_barrier_wait(&filled);
    for (int i = 1; i < blocks && !slabs; i += 4) {
        free(next[i]);
        next[i] = NULL;
    }
    pthread_barrier_wait(&done);
    pause();
    return NULL;
}

int main(int argc, char **argv) {
    static char buffer[1 << 16];
    if (argc < 3) return 2;
    threads = atoi(argv[1]);
    blocks = atoi(argv[2]);
    slabs = argc > 3 && !strcmp(argv[3], "slabs");
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    pthread_barrier_init(&filled, NULL, threads);
    pthread_barrier_init(&done, NULL, threads + 1);
    all = malloc(threads * sizeof *all);
    for (intptr_t i = 0; i < threads; i++) {
        pthread_t thread;
        all[i] = calloc(blocks, sizeof **all);
        if (i + 1 < threads) continue;
        for (intptr_t each = 0; each < threads; each++) pthread_create(&thread, NULL, work, (void *)each);
    }
    pthread_barrier_wait(&done);
    size_t live = threads + 1, bytes = malloc_usable_size(all);
    for (int i = 0; i < threads; i++) {
        bytes += malloc_usable_size(all[i]);
        for (int each = 0; each < blocks; each++) {
            if (!all[i][each]) continue;
            live++;
            bytes += malloc_usable_size(all[i][each]);
        }
    }
    printf("live %zu %zu\n", live, bytes);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    _exit(0);
}
