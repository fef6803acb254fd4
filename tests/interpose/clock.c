/* A library that replaces functions of the C library with which neap could ask for the time or the system, as
 * libfaketime does: its functions use thread storage that only the C library's threads have, and allocate under a lock.
 * */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Not initial-exec: found through a table of the thread. */
static __thread volatile unsigned long calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int clock_gettime(clockid_t clock, struct timespec *time) {
    calls++;
    pthread_mutex_lock(&lock);
    void *volatile p = malloc(100000);
    int result = syscall(SYS_clock_gettime, clock, time);
    free(p);
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned long getauxval(unsigned long type) {
    static unsigned long (*next)(unsigned long);
    calls++;
    if (!next) next = (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT, "getauxval");
    return next(type);
}
