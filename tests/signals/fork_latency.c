/* How long fork takes with much memory in blocks: fork_latency MIB LEAST MOST. Blocks have LEAST to MOST bytes, at
 * random. Prints medians of 20 in microseconds: until fork returns in the parent, the processor time of that, and until
 * the child has its first block. */
#include "check.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static long now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static int compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    size_t total = (size_t)atol(argv[1]) << 20, least = (size_t)atol(argv[2]), most = (size_t)atol(argv[3]);
    uint64_t seed = 4711;
    for (size_t n = 0; n < total;) {
        size_t block = least + next_random(&seed) % (most - least + 1);
        char *p = malloc(block);
        if (!p) SKIP("no memory");
        for (size_t i = 0; i < block; i += 4096) p[i] = 1;
        n += block;
    }
    volatile long *child = mmap(NULL, sizeof *child, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(child != MAP_FAILED);
    long took[20], spent[20], first[20];
    for (int i = 0; i < 20; i++) {
        long start = now(CLOCK_MONOTONIC), idle = now(CLOCK_THREAD_CPUTIME_ID);
        pid_t pid = fork();
        if (pid == 0) {
            void *p = malloc(100);
            *child = now(CLOCK_MONOTONIC);
            free(p);
            _exit(0);
        }
        took[i] = now(CLOCK_MONOTONIC) - start;
        spent[i] = now(CLOCK_THREAD_CPUTIME_ID) - idle;
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK_AT(status == 0, status);
        first[i] = *child - start;
    }
    qsort(took, 20, sizeof *took, compare);
    qsort(spent, 20, sizeof *spent, compare);
    qsort(first, 20, sizeof *first, compare);
    printf("fork %ld\nspent %ld\nfirst block %ld\n", took[10], spent[10], first[10]);
    return 0;
}
