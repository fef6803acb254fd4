/* Programs that allocate while a tool attaches to the probes. */
#include "check.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

static atomic_size_t requested;
static atomic_int end;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}
/* Blocks of all kinds: small, large, zeroed, aligned, resized. */
static void *work(void *unused) {
    (void)unused;
    uint64_t state = 1 + (uintptr_t)pthread_self();
    size_t sum = 0;
    while (!end) {
        void *blocks[64];
        for (int i = 0; i < 64; i++) {
            size_t size = 1 + next_random(&state) % 4000;
            switch (i % 8) {
            case 0: size *= 30; blocks[i] = malloc(size); break;
            case 1: blocks[i] = calloc(1, size); break;
            case 2: blocks[i] = aligned_alloc(64, size); break;
            case 3: sum += 10; blocks[i] = realloc(malloc(10), size + 100); size += 100; break;
            default: blocks[i] = malloc(size);
            }
            CHECK(blocks[i]);
            *(volatile char *)blocks[i] = 1;
            sum += size;
        }
        for (int i = 0; i < 64; i++) free(blocks[i]);
        usleep(1000);
        requested += sum;
        sum = 0;
    }
    return NULL;
}
/* Writes the time and the bytes requested since the start to the file OUT, every 50 ms. */
static void report(double length) {
    const char *name = getenv("OUT");
    int out = name ? open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600) : 1;
    CHECK(out >= 0);
    /* Before the threads that allocate, on a busy machine too: the test takes their rate as even between two lines. */
    setpriority(PRIO_PROCESS, 0, -20);
    double until = seconds() + length;
    while (seconds() < until) {
        double before, after;
        size_t bytes;
        do {
            before = seconds();
            bytes = requested;
            after = seconds();
        } while (after - before > 0.001);
        dprintf(out, "at %.6f requested %zu\n", after, bytes);
        usleep(50000);
    }
    end = 1;
}
static void threads(void) {
    pthread_t all[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&all[i], NULL, work, NULL) == 0);
    report(4);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(all[i], NULL) == 0);
}
static void allocate(int signal) {
    (void)signal;
    void *p = malloc(3000);
    CHECK(p);
    free(p);
}
/* Handlers and children that allocate. */
static void storm(void) {
    struct sigaction action = {.sa_handler = allocate, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 500}, {0, 500}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    double until = seconds() + 3;
    while (seconds() < until) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int i = 0; i < 2000; i++) free(malloc(1000));
            _exit(0);
        }
        int status;
        while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
        CHECK_AT(status == 0, status);
    }
    end = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {CASE(threads), CASE(storm)};
    return run_cases(argc, argv, cases, sizeof cases / sizeof *cases);
}
