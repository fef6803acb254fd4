/* Lives of threads: `lives WHERE END`, with LIVES_FORK or LIVES_DSO in the environment or without.
 *
 * 3,000 threads, in waves, whose first call of the allocator is malloc, calloc, realloc, free or malloc_usable_size, in
 * turn. WHERE that call is made: `start`, the start routine; `key1` to `key4`, a destructor of a key in that round;
 * `cxx`, a destructor of a thread_local object (whose registration allocates); `after`, after all destructors, where
 * the C library frees what a thread had and a tool's hook runs; `often`, the same with 40 such calls. END, how the
 * threads end: `joined`; `reused` and `unmapped`, joined, on stacks of the program's, which are used again, or unmapped
 * at once; `cancelled`; `detached`; `gone`, detached on a stack of the program's, which is unmapped as soon as the
 * thread is gone. With LIVES_FORK some of them fork there; with LIVES_DSO that library is loaded and unloaded between
 * the waves.
 *
 * Other ENDs are those of the process, in 20 children each: `last`, by the thread, after main has ended; `exec`, at
 * that place; `handler`, exit in a handler of a signal that arrives there.
 *
 * The contents of blocks are checked; another thread makes handshakes with all threads meanwhile (malloc_trim); and
 * memory must not grow with the number of threads (except for `often`: such threads keep their heaps). */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { WAVE = 20, WARM = 50, WAVES = 100, STACK = 64 << 10, ROUNDS = 4, FIRSTS = 5, BYTES = 100, MOST_GROWTH = 100, OFTEN_CALLS = 40, CHILDREN = 20, EXIT = 5 };
enum where { START, KEY1, KEY4 = KEY1 + ROUNDS - 1, CXX, AFTER, OFTEN };
enum end { JOINED, REUSED, UNMAPPED, CANCELLED, DETACHED, GONE, LAST, EXEC, HANDLER };
static const char *const wheres[] = {"start", "key1", "key2", "key3", "key4", "cxx", "after", "often"};
static const char *const ends[] = {"joined", "reused", "unmapped", "cancelled", "detached", "gone", "last", "exec", "handler"};

struct life {
    pthread_t thread;
    int first, forks, round;
    atomic_int tid;
    /* For the calls that need a block. */
    unsigned char *block;
};
static enum where where;
static enum end how;
static pthread_key_t key;
static atomic_int calls, done;
/* The life whose first call comes with the next free. Initial-exec: other storage is allocated at its first use. */
static __thread struct life *late __attribute__((tls_model("initial-exec")));

extern void __libc_free(void *);
int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

static void forked(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 100; i++) {
            unsigned char *p = malloc(50 + i);
            memset(p, i, 50 + i);
            free(p);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void ends_here(void) {
    if (how == EXEC) {
        execl("/proc/self/exe", "lives", "executed", NULL);
        CHECK(!"exec");
    }
    if (how == HANDLER) raise(SIGUSR1);
}

static void first_call(struct life *l) {
    unsigned char *p = l->block;
    l->block = NULL;
    switch (l->first) {
    case 0: p = malloc(BYTES); break;
    case 1:
        p = calloc(1, BYTES);
        for (int i = 0; i < BYTES; i++) CHECK_AT(p[i] == 0, i);
        break;
    case 2:
        p = realloc(p, BYTES * 40);
        for (int i = 0; i < BYTES; i++) CHECK_AT(p[i] == 7, i);
        break;
    case 3: break;
    case 4: CHECK(malloc_usable_size(p) >= BYTES); break;
    }
    if (l->first != 3) memset(p, l->first, BYTES);
    if (l->forks) forked();
    for (int i = 0; i < BYTES; i++) CHECK_AT(p[i] == (l->first != 3 ? l->first : 7), i);
    __libc_free(p);
    atomic_fetch_add(&calls, 1);
    ends_here();
}

/* The C library's frees come here. */
void free(void *p) {
    if (late) {
        struct life *l = late;
        late = NULL;
        for (int i = 1; where == OFTEN && i < OFTEN_CALLS; i++) {
            unsigned char *q = malloc(i * BYTES);
            memset(q, 1, i * BYTES);
            __libc_free(q);
        }
        first_call(l);
    }
    __libc_free(p);
}

static void on_key(void *arg) {
    struct life *l = arg;
    if (l->round++ < (int)(where - KEY1))
        CHECK(pthread_setspecific(key, l) == 0);
    else
        first_call(l);
}

static void on_object(void *arg) { first_call(arg); }

static void *run(void *arg) {
    struct life *l = arg;
    if (where == START) first_call(l);
    if (where >= KEY1 && where <= KEY4) CHECK(pthread_setspecific(key, l) == 0);
    if (where == CXX) CHECK(__cxa_thread_atexit_impl(on_object, l, &__dso_handle) == 0);
    if (where >= AFTER) late = l;
    atomic_store(&l->tid, (int)syscall(SYS_gettid));
    if (how == CANCELLED)
        for (;;) pause();
    if (how == DETACHED || how == GONE) {
        /* So that all of the wave exists at the same time, and its stacks do not all fit into the C library's cache. */
        usleep(500);
        atomic_fetch_add(&done, 1);
    }
    return NULL;
}

static void wait_until_gone(struct life *l) {
    while (!l->tid || syscall(SYS_tgkill, getpid(), l->tid, 0) == 0) usleep(20);
}

static void wave(struct life *lives, char **stacks, int number) {
    int own = how == REUSED || how == UNMAPPED || how == GONE;
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0);
    if (how == DETACHED || how == GONE) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (how == DETACHED) pthread_attr_setstacksize(&attr, 8 << 20);
    done = 0;
    for (int i = 0; i < WAVE; i++) {
        struct life *l = &lives[i];
        int first = (number * WAVE + i) % FIRSTS;
        *l = (struct life){.first = first, .forks = getenv("LIVES_FORK") && i == 0};
        if (first >= 2) memset(l->block = malloc(BYTES), 7, BYTES);
        if (own && !stacks[i]) {
            stacks[i] = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(stacks[i] != MAP_FAILED);
        }
        if (own) CHECK(pthread_attr_setstack(&attr, stacks[i], STACK) == 0);
        CHECK(pthread_create(&l->thread, &attr, run, l) == 0);
    }
    for (int i = 0; i < WAVE; i++) {
        struct life *l = &lives[i];
        if (how == CANCELLED) {
            while (!l->tid) usleep(20);
            CHECK(pthread_cancel(l->thread) == 0);
        }
        if (how == DETACHED || how == GONE)
            wait_until_gone(l);
        else
            CHECK(pthread_join(l->thread, NULL) == 0);
        if (how == UNMAPPED || how == GONE) {
            CHECK(munmap(stacks[i], STACK) == 0);
            stacks[i] = NULL;
        }
    }
    pthread_attr_destroy(&attr);
}

static void *trimmer(void *arg) {
    for (;;) {
        malloc_trim(0);
        usleep(100);
    }
    return arg;
}

/* Resident bytes. Not from status: some kernels update its figures in steps for each processor. */
static long held(void) {
    malloc_trim(0);
    return proc_kib("/proc/self/smaps_rollup", "Rss:") << 10;
}

static int named(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    dprintf(2, "lives: what is %s?\n", name);
    _exit(2);
}

static void on_signal(int number) {
    (void)number;
    exit(0);
}

/* Runs after the last thread, exec or exit. */
static void at_exit(void) {
    for (int i = 1; i < 100; i++) {
        unsigned char *p = calloc(i, 10);
        for (int j = 0; j < i * 10; j++) CHECK_AT(p[j] == 0, j);
        memset(p, 1, i * 10);
        free(p);
    }
    _exit(EXIT);
}

static void ends_of_processes(void) {
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            static struct life l;
            l.first = i % FIRSTS;
            if (l.first >= 2) memset(l.block = malloc(BYTES), 7, BYTES);
            CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
            CHECK(atexit(at_exit) == 0);
            pthread_t trims;
            /* Not beside the last thread. */
            if (how != LAST) CHECK(pthread_create(&trims, NULL, trimmer, NULL) == 0);
            CHECK(pthread_create(&l.thread, NULL, run, &l) == 0);
            if (how == LAST) pthread_exit(NULL);
            for (;;) pause();
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_AT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT, status);
    }
    printf("ok\n");
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "executed") == 0) at_exit();
    CHECK(argc > 2);
    where = named(wheres, sizeof wheres / sizeof *wheres, argv[1]);
    how = named(ends, sizeof ends / sizeof *ends, argv[2]);
    CHECK(pthread_key_create(&key, on_key) == 0);
    if (how >= LAST) {
        ends_of_processes();
        return 0;
    }
    pthread_t trims;
    CHECK(pthread_create(&trims, NULL, trimmer, NULL) == 0);
    static struct life lives[WAVE];
    static char *stacks[WAVE];
    int waves = 0;
    long before = 0, each = 0;
    /* Memory that grows only once (the C library's cache of stacks, for example) does not grow again: a second try. */
    for (int tries = 0; tries < 2 && (tries == 0 || each >= MOST_GROWTH); tries++) {
        for (int i = 0; i < WARM + WAVES; i++) {
            if (i == WARM) before = held();
            wave(lives, stacks, waves++);
            if (getenv("LIVES_DSO")) {
                void *dso = dlopen(getenv("LIVES_DSO"), RTLD_NOW);
                CHECK(dso);
                CHECK(dlclose(dso) == 0);
            }
        }
        each = (held() - before) / (WAVE * WAVES);
        if (where == OFTEN) break;
    }
    printf("%d calls, %ld bytes a thread\nok\n", calls, each);
    CHECK(calls == WAVE * waves);
    CHECK_AT(!strict() || where == OFTEN || each < MOST_GROWTH, each);
    return 0;
}
