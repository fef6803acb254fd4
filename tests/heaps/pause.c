/* A heap of small blocks, and a thread that keeps touching an OS page and giving it back; with "map", it also maps and
 * unmaps it, which waits while another process reads a list of the address space. For each byte on its input the
 * program prints the longest time in microseconds that one round took since the last answer, without the time that the
 * thread waited for a processor. Arguments: MiB, "touch" or "map". */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static _Atomic long longest;
static int map;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

/* Nanoseconds for which the thread waited for a processor so far. */
static long waited(FILE *file) {
    long ran, waited = 0;
    rewind(file);
    if (fscanf(file, "%ld %ld", &ran, &waited) != 2) abort();
    return waited;
}

static void *spin(void *unused) {
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (!file) abort();
    setvbuf(file, NULL, _IONBF, 0);
    long before = waited(file), at = now();
    volatile char *page = NULL;
    for (;;) {
        if (!page) page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) abort();
        *page = 1;
        madvise((void *)page, 4096, MADV_DONTNEED);
        if (map) {
            munmap((void *)page, 4096);
            page = NULL;
        }
        long then = now(), gap = then - at;
        if (gap > longest) {
            long after = waited(file);
            gap -= after - before;
            before = after;
            if (gap > longest) longest = gap;
            then = now();
        }
        at = then;
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    map = !strcmp(argv[2], "map");
    for (long left = atol(argv[1]) << 20; left > 0; left -= 208) memset(malloc(200), 0x5a, 200);
    pthread_t thread;
    pthread_create(&thread, NULL, spin, NULL);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
        printf("%ld\n", atomic_exchange(&longest, 0) / 1000);
        fflush(stdout);
    }
    return 0;
}
