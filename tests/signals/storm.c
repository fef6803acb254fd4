/* Signal handlers that allocate, resize and free, while they interrupt the same in all threads.
 *
 *   storm THREADS SECONDS [options as letters]
 *     a  handlers on alternate stacks
 *     f  main forks every 10 ms; the child goes on for a while under its own timers, 50 us apart. Those of main are 1 ms
 *        apart: fork begins anew when a signal waits, and with a handler that takes longer than 50 us one always does
 *     n  two signals, whose handlers interrupt each other
 *     p  main gives everything back to the system all the time
 *     t  threads end and start all the time
 *     d  main loads and unloads the library DSO
 *     H  handlers fork now and then
 *     R  the same, and the child returns from the handler into what was interrupted, and goes on for a while
 *     k  short blocks only, so that signals hit the fast paths
 *
 * Each thread has timers of its own (timer_create with SIGEV_THREAD_ID), 50 us apart. Blocks hold a header with size and
 * seed and are filled; they go from handlers to main code and back, and between threads, through slots that are swapped
 * atomically. The owner of a block checks it before it resizes or frees it.
 */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { SLOTS = 512, PERIOD_NS = 50000, FORKER_PERIOD_NS = 1000000, STACK = 32 << 10 };
/* Time between two forks, and limit on children at a time. */
enum { FORK_NS = 10000000, CHILDREN = 8 };

static _Atomic(char *) slots[SLOTS];
static atomic_int stop;
/* For fork_once; only the main thread uses it. */
static int children;
static atomic_ulong handled, nested_handled, rounds, forks, child_of_handler;
/* Set in the one-thread child of a fork in a handler, after it has returned from there. */
static atomic_int returned;
static const char *options = "";
static int has(char letter) { return strchr(options, letter) != NULL; }

/* Initial-exec, so that its first use in a handler allocates nothing. */
#define OWN static __thread __attribute__((tls_model("initial-exec")))
OWN volatile int depth;
OWN uint64_t seed;
OWN timer_t timers[2];

struct head { uint32_t size, fill; };

static size_t some_size(uint64_t r) {
    size_t small = r % 1200;
    if (has('k')) return small % 256;
    switch (r >> 32 & 31) {
    case 0: return r % 40000;
    case 1: return r % 200000;
    case 2: return (r >> 40 & 3) ? r % 70000 : r % 1500000;
    default: return small;
    }
}

/* Large blocks are checked at both ends and here and there: full checks would take all the time. */
static size_t step_of(size_t size) { return size < 4096 ? 1 : size / 64 | 1; }

static char *sign(char *p, size_t size, uint32_t fill) {
    CHECK(p);
    if (size >= sizeof(struct head)) *(struct head *)p = (struct head){(uint32_t)size, fill};
    for (size_t i = sizeof(struct head); i < size; i += step_of(size)) p[i] = (char)(fill + i * 131);
    return p;
}

static void verify(const char *p, size_t size, size_t from) {
    struct head h = *(const struct head *)p;
    CHECK_AT(h.size == size, h.size);
    for (size_t i = sizeof h; i < from; i += step_of(size)) CHECK_AT(p[i] == (char)(h.fill + i * 131), i);
}

static char *make(uint64_t r) {
    size_t size = some_size(r) + sizeof(struct head);
    char *p;
    switch (r >> 56 & 7) {
    case 0:
        p = calloc(1, size);
        for (size_t i = 0; p && i < size; i += step_of(size)) CHECK_AT(p[i] == 0, i);
        break;
    case 1: {
        size_t align = (size_t)16 << (r >> 50 & 15);
        p = aligned_alloc(align, size);
        CHECK_AT((uintptr_t)p % align == 0, align);
        break;
    }
    default: p = malloc(size);
    }
    CHECK(p);
    CHECK_AT(malloc_usable_size(p) >= size, size);
    return sign(p, size, (uint32_t)r);
}

static void discard(char *p) {
    if (!p) return;
    uint32_t size = ((struct head *)p)->size;
    verify(p, size, size);
    free(p);
}

static char *resize(char *p, uint64_t r) {
    if (!p) return make(r);
    size_t old = ((struct head *)p)->size, size = some_size(r) + sizeof(struct head);
    verify(p, old, old);
    p = realloc(p, size);
    CHECK(p);
    /* What was kept is unchanged, checked with the old step. */
    struct head h = *(struct head *)p;
    CHECK_AT(h.size == old, h.size);
    for (size_t i = sizeof h; i < old && i < size; i += step_of(old)) CHECK_AT(p[i] == (char)(h.fill + i * 131), i);
    return sign(p, size, (uint32_t)r);
}

/* One operation on one slot, by any thread. */
static void work(uint64_t r) {
    _Atomic(char *) *slot = &slots[r >> 20 & (SLOTS - 1)];
    char *p = atomic_exchange(slot, NULL);
    switch (r >> 10 & 3) {
    case 0: discard(p); p = NULL; break;
    case 1: p = resize(p, r * 0x9E3779B97F4A7C15ull); break;
    default: discard(p); p = make(r * 0x9E3779B97F4A7C15ull);
    }
    /* Another thread may have put a block there meanwhile. */
    discard(atomic_exchange(slot, p));
}

static void in_forked_child(void) {
    alarm(120);
    for (int i = 0; i < 50; i++) work(next_random(&seed));
    _exit(0);
}

static void handler(int signal) {
    int saved = errno;
    (void)signal;
    /* Where handlers take longer than the timer's period, main code would never get to check it. */
    if (stop) return;
    atomic_fetch_add(&handled, 1);
    if (depth++ > 0) atomic_fetch_add(&nested_handled, 1);
    if (!seed) seed = (uint64_t)(uintptr_t)&seed | 1;
    for (int i = 0; i < 3; i++) work(next_random(&seed));
    if ((has('H') || has('R')) && !returned && next_random(&seed) % 4096 == 0) {
        pid_t pid = fork();
        if (pid == 0) {
            if (!has('R')) in_forked_child();
            alarm(120);
            returned = 1;
        }
        if (pid > 0) {
            int status;
            while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
            CHECK_AT(status == 0, status);
            atomic_fetch_add(&child_of_handler, 1);
        }
    }
    depth--;
    errno = saved;
}

static void start_timer(int which, long period) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = which ? SIGUSR2 : SIGUSR1};
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timers[which]) == 0);
    struct itimerspec every = {{0, period + which * 7919}, {0, period}};
    CHECK(timer_settime(timers[which], 0, &every, NULL) == 0);
}

static void start_timers_of(long period) {
    start_timer(0, period);
    if (has('n')) start_timer(1, period);
}
static void start_timers(void) { start_timers_of(PERIOD_NS); }

static void *alternate_stack(void) {
    if (!has('a')) return NULL;
    size_t size = STACK;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    stack_t stack = {.ss_sp = p, .ss_size = size};
    CHECK(sigaltstack(&stack, NULL) == 0);
    return p;
}

static void drop_stack(void *p) {
    stack_t off = {.ss_flags = SS_DISABLE};
    if (p) CHECK(sigaltstack(&off, NULL) == 0 && munmap(p, STACK) == 0);
}

static void stop_timers(void) {
    timer_delete(timers[0]);
    if (has('n')) timer_delete(timers[1]);
}

/* What a thread leaves to the thread that joins it. */
struct left { timer_t timers[2]; void *stack; };

static void *thread(void *argument) {
    /* The handler may be the first of this thread that allocates. */
    void *stack = alternate_stack();
    start_timers();
    if (!seed) seed = (uint64_t)(uintptr_t)argument * 77 + 1;
    uint64_t mine = seed + 99;
    unsigned long limit = has('t') ? 300 : ~0ul;
    for (unsigned long i = 0; i < limit && !stop; i++) {
        work(next_random(&mine));
        if (returned) {
            for (int j = 0; j < 300; j++) work(next_random(&mine));
            _exit(0);
        }
        if (i % 64 == 0) atomic_fetch_add(&rounds, 64);
    }
    /* With 't' the timers, and so the signals, go on into the thread's end. */
    if (has('t')) {
        struct left *left = malloc(sizeof *left);
        *left = (struct left){{timers[0], timers[1]}, stack};
        return left;
    }
    stop_timers();
    drop_stack(stack);
    return NULL;
}

static void *thread_of_threads(void *argument) {
    uintptr_t n = (uintptr_t)argument;
    while (!stop) {
        pthread_t t;
        void *result;
        CHECK(pthread_create(&t, NULL, thread, (void *)++n) == 0);
        CHECK(pthread_join(t, &result) == 0);
        struct left *left = result;
        for (int i = 0; i < (has('n') ? 2 : 1); i++) CHECK(timer_delete(left->timers[i]) == 0);
        if (left->stack) CHECK(munmap(left->stack, STACK) == 0);
        free(left);
    }
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *load(void *unused) {
    (void)unused;
    start_timers();
    while (!stop) {
        void *library = dlopen(getenv("DSO"), RTLD_NOW);
        CHECK(library);
        CHECK(dlclose(library) == 0);
    }
    stop_timers();
    return NULL;
}

static void reap(int flags) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, flags)) != 0) {
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) break;
        CHECK_AT(status == 0, status);
        children--;
        if (children < CHILDREN) flags |= WNOHANG;
    }
}

/* Timers of the parent are not the child's. */
static void fork_once(void) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(120);
        setpriority(PRIO_PROCESS, 0, 0);
        start_timers();
        for (int i = 0; i < 100; i++) work(next_random(&seed));
        _exit(0);
    }
    atomic_fetch_add(&forks, 1);
    children++;
    reap(children < CHILDREN ? WNOHANG : 0);
}

/* Forks at fixed times, unless forks take longer than the time between two. */
static void fork_until(double end) {
    /* With higher priority than the other threads, which want all processors; where that is permitted. */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -15);
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    while (now() < end) {
        next.tv_nsec += FORK_NS;
        if (next.tv_nsec >= 1000000000) next.tv_nsec -= 1000000000, next.tv_sec++;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) == EINTR) {}
        double start = now();
        fork_once();
        if (now() - start > FORK_NS / 1e9) clock_gettime(CLOCK_MONOTONIC, &next);
    }
    while (children) reap(0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    int count = atoi(argv[1]);
    double end = now() + atof(argv[2]);
    options = argc > 3 ? argv[3] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (has('a') ? SA_ONSTACK : 0)};
    /* Handlers do not nest unless 'n' asks for it. */
    if (!has('n')) sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
    pthread_t t[64];
    for (uintptr_t i = 0; i < (uintptr_t)count; i++)
        CHECK(pthread_create(&t[i], NULL, has('t') ? thread_of_threads : has('d') && i == 0 ? load : thread, (void *)(i * 1000)) == 0);
    int timed = has('f') || has('p');
    if (timed) start_timers_of(has('f') ? FORKER_PERIOD_NS : PERIOD_NS);
    if (has('f')) fork_until(end);
    while (now() < end) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
        if (has('p')) malloc_trim(0);
    }
    if (timed) stop_timers();
    stop = 1;
    for (int i = 0; i < count; i++) CHECK(pthread_join(t[i], NULL) == 0);
    for (int i = 0; i < SLOTS; i++) discard(atomic_exchange(&slots[i], NULL));
    dprintf(1, "handlers %lu (inside another %lu), rounds %lu, forks %lu, forks in handlers %lu\nok\n", handled, nested_handled,
            rounds, forks, child_of_handler);
    return 0;
}
