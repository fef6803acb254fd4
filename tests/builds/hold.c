/* Frees most of what it has, then prints "ready" and waits. A line of input makes it call malloc_trim.
 *   blocks   400 MiB in blocks of 4 KiB, 80 % freed
 *   threads  32 threads, each frees all but the last of 10,240 blocks of 1 KiB
 *   caches   100 threads, each with full caches of all small sizes */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 102400, BLOCK = 4096, EACH = 10240, CACHED = 7, LARGEST = 1032 };

static char *block[BLOCKS];
static pthread_barrier_t filled, done;

static void *retain(void *last) {
    char **own = malloc(EACH * sizeof *own);
    for (int i = 0; i < EACH; i++) memset(own[i] = malloc(1024), 1, 1024);
    pthread_barrier_wait(&filled);
    for (int i = 0; i < EACH - 1; i++) free(own[i]);
    pthread_barrier_wait(&done);
    pause();
    return last;
}

static void *fill(void *last) {
    for (int size = 8; size <= LARGEST; size += 16) {
        char *own[CACHED];
        for (int i = 0; i < CACHED; i++) memset(own[i] = malloc(size), 1, size);
        for (int i = 0; i < CACHED; i++) free(own[i]);
    }
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&done);
    pause();
    return last;
}

static void threads(int count, void *(*work)(void *)) {
    pthread_barrier_init(&filled, NULL, count + 1);
    pthread_barrier_init(&done, NULL, count + 1);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL)) exit(2);
    }
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&done);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "blocks")) {
        for (int i = 0; i < BLOCKS; i++) memset(block[i] = malloc(BLOCK), 1, BLOCK);
        for (int i = 0; i < BLOCKS / 5 * 4; i++) free(block[i]);
    } else if (!strcmp(what, "threads")) {
        threads(32, retain);
    } else if (!strcmp(what, "caches")) {
        threads(100, fill);
    } else {
        return 2;
    }
    char line[64];
    while (puts("ready"), fflush(stdout), fgets(line, sizeof line, stdin)) malloc_trim(0);
    return 0;
}
