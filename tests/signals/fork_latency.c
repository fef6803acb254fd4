/* How long fork takes with much memory in blocks: fork_latency MIB BLOCK_BYTES. Prints the median of 20 in microseconds. */
#include "check.h"
#include <sys/wait.h>
#include <time.h>

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static int compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    size_t total = (size_t)atol(argv[1]) << 20, block = (size_t)atol(argv[2]);
    for (size_t n = 0; n < total; n += block) {
        char *p = malloc(block);
        if (!p) SKIP("no memory");
        for (size_t i = 0; i < block; i += 4096) p[i] = 1;
    }
    long took[20];
    for (int i = 0; i < 20; i++) {
        long start = now();
        pid_t pid = fork();
        if (pid == 0) {
            free(malloc(100));
            _exit(0);
        }
        took[i] = now() - start;
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK_AT(status == 0, status);
    }
    qsort(took, 20, sizeof *took, compare);
    printf("median %ld\n", took[10]);
    return 0;
}
