/* Threads that get a heap in the last round of destructors, after neap's destructor, which does not run again. */
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 16, CALLS = 40 };

/* neap's: musl has none. */
__attribute__((weak)) int malloc_trim(size_t keep);
static pthread_key_t key;

static void at_end(void *round) {
    if ((uintptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(key, (char *)round + 1);
        return;
    }
    for (int i = 0; i < CALLS; i++) free(malloc(100));
}
static void *work(void *unused) {
    pthread_setspecific(key, (void *)1);
    return unused;
}

int main(void) {
    free(malloc(1));
    if (pthread_key_create(&key, at_end) != 0) return 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0 || pthread_join(thread, NULL) != 0) return 2;
        /* Until the system has forgotten the thread. */
        usleep(20000);
        malloc_trim(0);
    }
    puts("ok");
    return 0;
}
