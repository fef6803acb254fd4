/* Threads deep in live calls, on adjacent stacks whose guards are marks in the page table, as glibc 2.42 and later make
   them. With an argument they run. Prints its process, and ends with its input. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define SIZE (8ul << 20)
static int spin, said;
static void deep(int left) {
    volatile char used[4096];
    memset((void *)used, 1, sizeof used);
    if (left) deep(left - 1);
    else {
        __atomic_add_fetch(&said, 1, __ATOMIC_RELEASE);
        while (spin) used[0]++;
        pause();
    }
    used[0] = 2;
}
static void *body(void *unused) {
    deep(256);
    return unused;
}
int main(int count, char **words) {
    char *room = mmap(0, 8 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int threads = count > 1 ? 2 : 8;
    spin = count > 1;
    madvise(room, 8 * SIZE, MADV_NOHUGEPAGE);
    for (int i = 0; i < threads; i++) {
        char *stack = room + (7 - i) * SIZE;
        pthread_attr_t how;
        pthread_t thread;
        if (madvise(stack, 4096, 102)) return puts("no guards"), 1;
        pthread_attr_init(&how);
        pthread_attr_setstack(&how, stack + 4096, SIZE - 4096);
        pthread_create(&thread, &how, body, 0);
    }
    while (__atomic_load_n(&said, __ATOMIC_ACQUIRE) < threads) usleep(1000);
    usleep(50000);
    printf("%d\n", getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {}
    _exit(0);
}
