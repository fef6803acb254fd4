// Long names wherever a report has names: the command, a file that is mapped, named memory, threads; with memory that
// glibc keeps in arenas. Its argument is the name of the file. Says "ready", and ends with its standard input.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { THREADS = 6, BLOCKS = 2000, FILE_BYTES = 8 << 20 };

static pthread_barrier_t barrier;

static void *work(void *number) {
    char name[16];
    snprintf(name, sizeof name, "a-name-of-15-%02ld", (long)number);
    pthread_setname_np(pthread_self(), name);
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(1000), 1, 1000);
    for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
    pthread_barrier_wait(&barrier);
    pause();
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, FILE_BYTES) != 0) return 3;
    char *mapped = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    char *named = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || named == MAP_FAILED) return 4;
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, named, FILE_BYTES,
          "a name of memory that is as long as the kernel lets a name of memory be 80");
    memset(mapped, 1, FILE_BYTES);
    memset(named, 1, FILE_BYTES);
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i) != 0) return 5;
    }
    pthread_barrier_wait(&barrier);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
