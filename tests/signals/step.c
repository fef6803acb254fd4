/* A handler at each instruction: the processor's trap flag brings SIGTRAP after every instruction of the tested code,
 * and its handler allocates, resizes and frees. So it interrupts neap at every point that the tested code reaches. A
 * second signal, raised in the handler, may interrupt the handler's own calls; the storm does so reliably. */
#include "check.h"
#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

#ifndef __x86_64__
int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--list") == 0) return 0;
    SKIP("the trap flag is x86's");
}
#else

#define OWN static __thread __attribute__((tls_model("initial-exec")))
OWN volatile long steps;
/* The handler works at each step, or at this one only. */
OWN volatile long only;
OWN volatile int inside;
OWN uint64_t seed;

/* Leaves the red zone below the stack pointer alone, which leaf functions use. */
static inline void step_on(void) {
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}
static inline void step_off(void) {
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}

enum { SLOTS = 64 };
struct slot { char *p; size_t size; uint64_t fill; };
OWN struct slot slots[SLOTS];

static void put(struct slot *s, char *p, size_t size, uint64_t fill_) {
    CHECK(p);
    CHECK_AT(malloc_usable_size(p) >= size, size);
    fill(p, size, fill_);
    *s = (struct slot){p, size, fill_};
}

/* Blocks of the handler's, of all kinds; sometimes one that main code made. */
static void work(void) {
    uint64_t r = next_random(&seed);
    struct slot *s = &slots[r % SLOTS];
    size_t size = (r >> 8) % 300;
    if ((r >> 32) % 16 == 0) size *= 40;
    if ((r >> 32) % 256 == 1) size *= 500;
    if (!s->p) return put(s, (r >> 48) % 3 ? malloc(size) : memalign(64 << (r >> 50) % 8, size), size, r);
    CHECK_FILL(s->p, s->size, s->fill);
    if ((r >> 40) % 3 == 0) {
        char *p = realloc(s->p, size + 1);
        CHECK(p);
        CHECK_FILL(p, s->size < size ? s->size : size, s->fill);
        put(s, p, size + 1, r);
    } else {
        free(s->p);
        s->p = NULL;
    }
}

static void on_trap(int signal) {
    (void)signal;
    int saved = errno;
    steps++;
    if ((only < 0 || steps == only) && !inside) {
        inside = 1;
        work();
        if (steps % 64 == 0) raise(SIGUSR1);
        inside = 0;
    }
    errno = saved;
}

static void on_user(int signal) {
    (void)signal;
    work();
}

static void start(void) {
    struct sigaction trap = {.sa_handler = on_trap}, user = {.sa_handler = on_user};
    CHECK(sigaction(SIGTRAP, &trap, NULL) == 0 && sigaction(SIGUSR1, &user, NULL) == 0);
    seed = 12345;
    only = -1;
}

static void finish(const char *what) {
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].p) CHECK_FILL(slots[i].p, slots[i].size, slots[i].fill);
        free(slots[i].p);
        slots[i].p = NULL;
    }
    dprintf(1, "%s: %ld steps\n", what, steps);
    CHECK_AT(steps > 1000, steps);
}

/* The tested code runs between these. `hand_over` tests `free` of blocks that handlers made, and the other way round.
   */
#define STEPPED(code) do { step_on(); code; step_off(); } while (0)

static void small(void) {
    start();
    static char *p[700];
    for (size_t size = 1; size <= 32768; size = size * 7 / 2 + 1) {
        int n = size < 256 ? 300 : 20;
        /* Refills and carving, then flushes and released slabs. */
        STEPPED(for (int i = 0; i < n; i++) p[i] = malloc(size));
        for (int i = 0; i < n; i++) memset(p[i], i, size);
        if (size < 600) STEPPED(for (int i = 0; i < n; i += 2) p[i] = realloc(p[i], size + size / 2 + 40));
        for (int i = 0; i < n; i++) CHECK(p[i] && p[i][size - 1] == (char)i);
        STEPPED(for (int i = 0; i < n; i++) free(p[i]));
        if (size < 600) STEPPED(for (int i = 0; i < 20; i++) free(calloc(1, size)));
    }
    finish("small");
}

static void large(void) {
    start();
    for (int round = 0; round < 2; round++) {
        for (size_t size = 70000; size < 800000; size = size * 7 / 3) {
            char *p[4];
            STEPPED(for (int i = 0; i < 4; i++) p[i] = malloc(size));
            for (int i = 0; i < 4; i++) { CHECK(p[i]); p[i][0] = p[i][size - 1] = (char)i; }
            /* In place: a copy would be a step for each byte. */
            STEPPED(p[2] = realloc(p[2], size - size / 8));
            CHECK(p[2] && p[2][0] == 2);
            STEPPED(for (int i = 0; i < 4; i++) free(p[i]));
            STEPPED(free(aligned_alloc(1 << 17, size)));
        }
    }
    finish("large");
}

/* Blocks go from handlers to main code and back. */
static void hand_over(void) {
    start();
    for (int i = 0; i < 1500; i++) {
        struct slot s = slots[i % SLOTS];
        slots[i % SLOTS].p = NULL;
        if (s.p) CHECK_FILL(s.p, s.size, s.fill);
        STEPPED(free(s.p));
        if (i % 3 == 0) {
            size_t size = (size_t)(i % 200) * (i % 21 == 0 ? 1000 : 3);
            STEPPED(s.p = malloc(size));
            put(&slots[i % SLOTS], s.p, size, (uint64_t)i);
        }
    }
    finish("hand_over");
}

static void *freer(void *argument) {
    char **p = argument;
    only = 0;
    for (int i = 0; i < 300; i++) free(p[i]);
    return NULL;
}

/* Frees by other threads are collected, and made, step by step. */
static void remote(void) {
    start();
    static char *p[300];
    for (int round = 0; round < 12; round++) {
        size_t size = 16 + (size_t)round * 60;
        for (int i = 0; i < 300; i++) CHECK(p[i] = malloc(size));
        pthread_t t;
        CHECK(pthread_create(&t, NULL, freer, p) == 0);
        CHECK(pthread_join(t, NULL) == 0);
        STEPPED(for (int i = 0; i < 300; i++) p[i] = malloc(size));
        for (int i = 0; i < 300; i++) CHECK(p[i]);
        STEPPED(for (int i = 0; i < 300; i++) free(p[i]));
    }
    finish("remote");
}

/* Gives everything back to the system, step by step. */
static void purge(void) {
    size_t (*give_back)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "neap_purge");
    if (!give_back) SKIP("neap_purge is neap's");
    start();
    for (int round = 0; round < 2; round++) {
        char *p[64];
        for (int i = 0; i < 64; i++) CHECK(p[i] = malloc((size_t)(i + 1) * 3000));
        for (int i = 0; i < 64; i++) free(p[i]);
        STEPPED(give_back());
    }
    finish("purge");
}

static pthread_key_t last;

/* Runs after neap's own destructor in each round, as this key is newer; in the last round it is the last of all. */
static void on_end(void *rounds) {
    if ((uintptr_t)rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(last, (void *)((uintptr_t)rounds + 1));
        return;
    }
    step_off();
}

static long most;
/* Threads are expensive: only one for every STRIDE instructions. */
enum { STRIDE = 37 };

/* The thread's first call, or its end, with the handler at one instruction. */
static void *first_use(void *argument) {
    seed = (uint64_t)(uintptr_t)argument * 7 + 1;
    only = (long)(uintptr_t)argument;
    char *p;
    STEPPED(p = malloc(100));
    CHECK(p);
    free(p);
    if (steps > most) most = steps;
    for (int i = 0; i < SLOTS; i++) free(slots[i].p);
    return NULL;
}

static void *end(void *argument) {
    seed = (uint64_t)(uintptr_t)argument * 7 + 1;
    only = (long)(uintptr_t)argument;
    CHECK(pthread_setspecific(last, (void *)1) == 0);
    for (int i = 0; i < 40; i++) free(malloc((size_t)i * 100));
    /* Some blocks for the handler to free. */
    for (int i = 0; i < SLOTS; i += 2) put(&slots[i], malloc(50), 50, 1);
    step_on();
    return NULL;
}

static void threads(void *(*life)(void *), long count) {
    start();
    for (long i = 1; i <= count; i += STRIDE) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, life, (void *)i) == 0);
        CHECK(pthread_join(t, NULL) == 0);
    }
}

static void thread_start(void) {
    threads(first_use, 3000);
    dprintf(1, "%ld steps in a thread's first call\n", most);
    CHECK_AT(most > 100, most);
}

static void thread_end(void) {
    CHECK(pthread_key_create(&last, on_end) == 0);
    threads(end, 3000);
}

/* One fork for each of some instructions: the handler works there, in the parent, in the child, or in both. */
static void forks(void) {
    start();
    for (long i = 1; i < 1500; i += 29) {
        steps = 0;
        only = i;
        pid_t pid;
        STEPPED(pid = fork());
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(120);
            only = 0;
            for (int j = 0; j < 60; j++) work();
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_AT(status == 0, i);
    }
}

/* Forks in each stepped call, and the steps between two forks. The first one's place varies from call to call. */
enum { FORKS = 16, FORK_STRIDE = 13 };
static long fork_at;
static int forks_left;
static volatile int is_child;
static unsigned long children;

static void on_trap_fork(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    int saved = errno;
    steps++;
    if (!is_child && forks_left > 0 && steps == fork_at) {
        fork_at += FORK_STRIDE;
        forks_left--;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(120);
            is_child = 1;
            /* No steps from here on. */
            ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100ll;
        } else {
            int status;
            while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
            CHECK_AT(status == 0, status);
            children++;
        }
    }
    errno = saved;
}

/* Chooses the step of the first fork in the next stepped call. */
static void fork_in_next(void) {
    fork_at = steps + 1 + (long)(next_random(&seed) % (2 * FORK_STRIDE));
    forks_left = FORKS;
}

/* Runs after the interrupted call: a child goes on for a while, with earlier blocks too, and ends. */
static void end_child(char **before, int count, size_t size) {
    if (!is_child) return;
    for (int i = 0; i < count; i++) {
        if (!before[i]) continue;
        CHECK_FILL(before[i], size, (uint64_t)i);
        free(before[i]);
    }
    for (int i = 0; i < 200; i++) work();
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].p) CHECK_FILL(slots[i].p, slots[i].size, slots[i].fill);
        free(slots[i].p);
    }
    _exit(0);
}

static void *idle(void *ready) {
    /* Enough for the thread to have a heap, whose state the child does not know. */
    for (int i = 0; i < 200; i++) free(malloc(100));
    pthread_barrier_wait(ready);
    pause();
    return NULL;
}

/* The handler forks in the middle of calls, and its child returns into them, in a process of several threads: the
 * interrupted call must get its memory, and lose nothing. */
static void stranded(void) {
    pthread_barrier_t ready;
    pthread_t other;
    CHECK(pthread_barrier_init(&ready, NULL, 2) == 0 && pthread_create(&other, NULL, idle, &ready) == 0);
    pthread_barrier_wait(&ready);
    /* Makes the file of the counters, during which all signals are blocked. */
    free(malloc(8 << 20));
    start();
    struct sigaction trap = {.sa_sigaction = on_trap_fork, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGTRAP, &trap, NULL) == 0);
    static char *p[64];
    /* Refills that need a new slab, blocks past the caches, large ones: of sizes that were not used before. */
    for (size_t size = 300; size < 60000; size = size * 5 / 4) {
        enum { N = 8 };
        for (int i = 0; i < N; i++) {
            fork_in_next();
            switch (i) {
            /* A step for every few bytes that are cleared, or copied below. */
            case 0: STEPPED(p[i] = size < 2000 ? calloc(1, size) : malloc(size)); break;
            case 1: STEPPED(p[i] = aligned_alloc(4096, size)); break;
            default: STEPPED(p[i] = malloc(size));
            }
            CHECK(p[i]);
            fill(p[i], size, (uint64_t)i);
            end_child(p, i + 1, size);
        }
        for (int i = 0; i < N && size < 3000; i += 4) {
            fork_in_next();
            STEPPED(p[i] = realloc(p[i], size * 2 + 100));
            CHECK(p[i]);
            end_child(p, N, size);
        }
        for (int i = 0; i < N; i++) {
            char *old = p[i];
            CHECK_FILL(old, size, (uint64_t)i);
            p[i] = NULL;
            fork_in_next();
            STEPPED(free(old));
            end_child(p, N, size);
        }
    }
    finish("stranded");
    dprintf(1, "%lu children\n", children);
    CHECK_AT(children > 1000, children);
}

static const struct test_case cases[] = {CASE(small), CASE(large), CASE(hand_over), CASE(remote), CASE(purge),
                                         CASE(thread_start), CASE(thread_end), CASE(forks), CASE(stranded)};
TEST_MAIN(cases)
#endif
