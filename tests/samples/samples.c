/* Programs whose live blocks are known by call site: `leaky_...` keep what they allocate, all others free it. At its
   end each case prints how many bytes are live, and how many were requested in all, as far as it counts them. */
#include "check.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

#define SITE __attribute__((noinline, noclone))
static atomic_size_t live, total;
static void *kept[2000000];
static atomic_size_t count;
static uint32_t state = 1;

static uint32_t next(void) { return state = state * 1664525 + 1013904223; }
static size_t size(size_t most) { return 1 + (next() >> 8) % most; }
static void *note(void *p, size_t n, int stays) {
    CHECK(p);
    *(volatile char *)p = 1;
    total += n;
    if (stays) {
        live += n;
        kept[count++] = p;
    }
    return p;
}
SITE static void churn(size_t most) {
    void *p[16];
    for (int i = 0; i < 16; i++) {
        size_t n = size(most);
        p[i] = note(malloc(n), n, 0);
    }
    for (int i = 0; i < 16; i++) free(p[i]);
}
static void say(void) { dprintf(1, "live %zu total %zu\n", (size_t)live, (size_t)total); }

SITE static void leaky_malloc(void) { size_t n = size(400); note(malloc(n), n, 1); }
SITE static void leaky_calloc(void) { size_t n = size(400); note(calloc(1, n), n, 1); }
SITE static void leaky_aligned(void) { size_t n = size(400); note(aligned_alloc(64, n), n, 1); }
SITE static void leaky_strdup(void) {
    char text[300];
    size_t n = size(sizeof text - 1);
    memset(text, 'x', n);
    text[n] = 0;
    note(strdup(text), n + 1, 1);
}
SITE static void leaky_large(void) { note(malloc(200000), 200000, 1); }
SITE static void leaky_realloc(void) {
    size_t n = size(200), more = n + size(200);
    void *p = note(malloc(n), n, 0);
    note(realloc(p, more), more, 1);
}
/* Made a little shorter, which leaves a block where it is. */
SITE static void leaky_trimmed(void) {
    void *p = note(malloc(304), 304, 1);
    CHECK(realloc(p, 300) == p);
}
/* One block that keeps growing, as a vector does. */
SITE static void leaky_vector(void) {
    static char *vector;
    static size_t length;
    size_t before = length;
    length += length / 2 + 1000;
    vector = realloc(vector, length);
    CHECK(vector);
    memset(vector + before, 1, length - before);
    total += length;
    live += length - before;
}
struct node { struct node *next; char data[88]; };
SITE static void leaky_list(void) {
    static struct node *first;
    struct node *node = note(malloc(sizeof *node), sizeof *node, 1);
    node->next = first;
    first = node;
}
static void *short_thread(void *site) {
    for (int i = 0; i < 50; i++) ((void (*)(void))site)();
    return NULL;
}
SITE static void leaky_in_thread(void) { size_t n = size(4000); note(malloc(n), n, 1); }
static void thread_leak(void) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, short_thread, (void *)leaky_in_thread) == 0);
    CHECK(pthread_join(t, NULL) == 0);
}
/* A ring of blocks that are replaced, and beside it a leak of a tenth of all allocated bytes. */
static void rounds(void (*leak)(void), int count) {
    for (int i = 0; i < count; i++) {
        churn(i % 8 ? 600 : 20000);
        leak();
    }
    say();
}
static void with_malloc(void) { rounds(leaky_malloc, 60000); }
static void with_calloc(void) { rounds(leaky_calloc, 60000); }
static void with_aligned(void) { rounds(leaky_aligned, 60000); }
static void with_strdup(void) { rounds(leaky_strdup, 60000); }
static void with_large(void) { rounds(leaky_large, 400); }
static void with_realloc(void) { rounds(leaky_realloc, 60000); }
static void with_trimmed(void) { rounds(leaky_trimmed, 60000); }
static void with_vector(void) { rounds(leaky_vector, 22); }
static void with_list(void) { rounds(leaky_list, 60000); }
static void with_threads(void) { rounds(thread_leak, 500); }

/* A block that realloc fails to enlarge stays. */
SITE static void leaky_failed(void) {
    void *p = note(malloc(200000), 200000, 1);
    CHECK(!realloc(p, (size_t)1 << 48));
}
static void with_failed(void) {
    for (int i = 0; i < 100; i++) churn(600);
    leaky_failed();
    leaky_failed();
    say();
}

/* Blocks that others free: threads, and handlers. */
static void *freer(void *from) {
    void **all = from;
    for (int i = 0; i < 1000; i++) free(all[i]);
    return NULL;
}
static void remote(void) {
    static void *all[1000];
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 1000; i++) {
            size_t n = size(2000);
            all[i] = note(malloc(n), n, 0);
        }
        pthread_t t;
        CHECK(pthread_create(&t, NULL, freer, all) == 0);
        CHECK(pthread_join(t, NULL) == 0);
    }
    say();
}
/* Handlers that allocate and free anywhere, inside calls and inside the taking of samples. */
static void *of_handler[64];
static atomic_int handled;
static void handler(int signal) {
    (void)signal;
    int place = handled++ % 64;
    void *p = atomic_exchange((_Atomic(void *) *)&of_handler[place], NULL);
    free(p);
    atomic_store((_Atomic(void *) *)&of_handler[place], malloc(100 + place * 50));
}
static void *storm(void *arg) {
    for (int i = 0; i < 3000; i++) churn(1000);
    return arg;
}
static void signals(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t t[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, storm, NULL) == 0);
    for (int i = 0; i < 3000; i++) churn(1000);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(handled > 100);
    for (int i = 0; i < 64; i++) free(of_handler[i]);
    say();
}
/* A child that allocates on its own and frees its parent's blocks. */
SITE static void leaky_parent(void) { note(malloc(3000), 3000, 1); }
SITE static void leaky_child(void) { note(malloc(5000), 5000, 1); }
static void forks(void) {
    for (int i = 0; i < 3000; i++) leaky_parent();
    say();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        live = total = 0;
        for (int i = 0; i < 3000; i++) free(kept[i]);
        count = 0;
        for (int i = 0; i < 2000; i++) leaky_child();
        say();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}
/* Keeps forking while threads are sampled. */
static void fork_storm(void) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, storm, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int k = 0; k < 20; k++) churn(1000);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
    say();
}
/* Code that was unloaded, and other code in its place. */
static void plugins(void) {
    for (int round = 0; round < 2; round++) {
        void *plugin = dlopen(getenv(round ? "PLUGIN_B" : "PLUGIN_A"), RTLD_NOW);
        CHECK(plugin);
        void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(plugin, "plugin_allocate");
        CHECK(allocate);
        for (int i = 0; i < 1000; i++) note(allocate(4000), 4000, 1);
        dlclose(plugin);
    }
    say();
}
/* Runs until its input ends: threads that allocate and keep a little. */
static void *serve(void *arg) {
    uint32_t own = (uint32_t)(uintptr_t)arg;
    void *ring[500] = {0};
    for (;;) {
        for (int i = 0; i < 500; i++) {
            own = own * 1664525 + 1013904223;
            free(ring[i]);
            ring[i] = malloc(16 + (own >> 20) % 2000);
            CHECK(ring[i]);
        }
        usleep(100);
    }
    return arg;
}
SITE static void leaky_served(void) { CHECK(malloc(500)); }
static void *leak_slowly(void *arg) {
    for (;;) {
        for (int i = 0; i < 20; i++) leaky_served();
        usleep(500);
    }
    return arg;
}
static void serves(void) {
    pthread_t t;
    for (long i = 0; i < 2; i++) CHECK(pthread_create(&t, NULL, serve, (void *)(i + 7)) == 0);
    CHECK(pthread_create(&t, NULL, leak_slowly, NULL) == 0);
    dprintf(1, "ready\n");
    char byte;
    CHECK(read(0, &byte, 1) >= 0);
}
extern int neap_profile_start(size_t) __attribute__((weak));
extern void neap_profile_stop(void) __attribute__((weak));
/* The same, and at the first byte the program starts its own sampling. */
static void chooses(void) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, leak_slowly, NULL) == 0);
    dprintf(1, "ready\n");
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    CHECK(neap_profile_start(16384) == 0);
    CHECK(read(0, &byte, 1) >= 0);
}
/* Blocks that are freed while sampling is off, between two times when each block is a sample. */
SITE static void exactly_twice(void) {
    static void *block[1000];
    CHECK(neap_profile_start(1) == 0);
    for (int i = 0; i < 1000; i++) CHECK(block[i] = malloc(500));
    neap_profile_stop();
    for (int i = 0; i < 1000; i++) free(block[i]);
    CHECK(neap_profile_start(1) == 0);
    for (int i = 0; i < 1000; i++) CHECK(block[i] = malloc(500));
    for (int i = 0; i < 1000; i++) free(block[i]);
    say();
}
/* A child that makes no call. */
static void fork_idles(void) {
    char byte;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dprintf(1, "ready\n");
        CHECK(read(0, &byte, 1) >= 0);
        _exit(0);
    }
    CHECK(read(0, &byte, 1) >= 0);
}
static void idles(void) {
    free(malloc(100));
    dprintf(1, "ready\n");
    char byte;
    CHECK(read(0, &byte, 1) >= 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(with_malloc), CASE(with_calloc), CASE(with_aligned), CASE(with_strdup), CASE(with_large),
        CASE(with_realloc), CASE(with_trimmed), CASE(with_vector), CASE(with_list), CASE(with_threads), CASE(remote), CASE(signals),
        CASE(forks), CASE(fork_storm), CASE(plugins), CASE(serves), CASE(idles), CASE(chooses),
        CASE(exactly_twice), CASE(fork_idles), CASE(with_failed),
    };
    return run_cases(argc, argv, cases, sizeof cases / sizeof *cases);
}
