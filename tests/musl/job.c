/* 32 threads that allocate and free blocks of mixed sizes; prints the milliseconds. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *work(void *arg) {
    void *kept[512] = {0};
    unsigned seed = (unsigned)(size_t)arg * 77 + 1;
    for (int i = 0; i < 1200000; i++) {
        seed = seed * 1664525 + 1013904223;
        void **place = &kept[seed >> 23];
        free(*place);
        *place = malloc((seed >> 8) % 1000 + 16);
        *(char *)*place = 1;
    }
    for (int i = 0; i < 512; i++) free(kept[i]);
    return NULL;
}

int main(void) {
    struct timespec from, to;
    pthread_t t[32];
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (size_t i = 0; i < 32; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < 32; i++) pthread_join(t[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%.1f\n", (to.tv_sec - from.tv_sec) * 1e3 + (to.tv_nsec - from.tv_nsec) / 1e6);
    return 0;
}
