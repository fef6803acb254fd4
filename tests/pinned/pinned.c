/* Heaps of which much is resident and little is live. In each case `pinner_...` keeps a few blocks among many that are
   freed, and `dense_...` keeps more bytes, packed together, in the same size classes. At its end a case gives back what
   it can, prints how many (usable) bytes are live, and waits for its input to end. */
#include "check.h"
#include <malloc.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#define SITE __attribute__((noinline, noclone, no_icf))
static atomic_size_t live;
/* Shared memory, which does not count as heap. */
static void **kept, **passed;
static atomic_size_t count;

enum { KEPT = 4000000 };
static void **shared(size_t pointers) {
    void *p = mmap(NULL, pointers * sizeof(void *), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}
static void *filled(void *p, size_t n) {
    CHECK(p);
    memset(p, 1, n);
    return p;
}
static void keep(void *p) {
    live += malloc_usable_size(p);
    kept[count++] = p;
}
SITE static void *pinner_of(size_t n) { void *p = filled(malloc(n), n); return p; }
SITE static void *pinner_zeroed(size_t n) { void *p = filled(calloc(1, n), n); return p; }
SITE static void *pinner_text(size_t n) {
    char text[1024];
    memset(text, 'x', n);
    text[n - 1] = 0;
    char *p = strdup(text);
    CHECK(p);
    return p;
}
SITE static void *freed_of(size_t n) { void *p = filled(malloc(n), n); return p; }
SITE static void *dense_of(size_t n) { void *p = filled(malloc(n), n); return p; }

/* Allocates `bytes` in blocks of `n`, of which the pinner keeps one each `every` bytes. */
static void sparse(void *(*pinner)(size_t), size_t n, size_t bytes, size_t every) {
    size_t blocks = bytes / n, step = every / n ? every / n : 1;
    void **others = malloc(blocks * sizeof *others);
    CHECK(others);
    size_t freed = 0;
    for (size_t i = 0; i < blocks; i++) {
        if (i % step == step / 2) keep(pinner(n));
        else others[freed++] = freed_of(n);
    }
    for (size_t i = 0; i < freed; i++) free(others[i]);
    free(others);
}
static void dense(size_t n, size_t bytes) {
    for (size_t done = 0; done < bytes; done += n) keep(dense_of(n));
}

#define MIB ((size_t)1 << 20)
static void page_64(void) { dense(64, 8 * MIB); sparse(pinner_of, 64, 48 * MIB, 4096); dense(64, 8 * MIB); }
static void page_512(void) { dense(512, 8 * MIB); sparse(pinner_zeroed, 512, 48 * MIB, 4096); dense(512, 8 * MIB); }
static void page_1500(void) { dense(1500, 8 * MIB); sparse(pinner_of, 1500, 96 * MIB, 8192); }
static void page_6000(void) { dense(6000, 16 * MIB); sparse(pinner_of, 6000, 192 * MIB, 16384); }
static void far_48(void) { dense(48, 4 * MIB); sparse(pinner_of, 48, 256 * MIB, 16384); }
static void text_200(void) { dense(200, 8 * MIB); sparse(pinner_text, 200, 48 * MIB, 8192); }
static void mixed(void) {
    for (size_t n = 16; n <= 400; n += 48) {
        dense(n, MIB);
        sparse(pinner_of, n, 8 * MIB, 4096);
    }
}
static void *one_thread(void *n) {
    sparse(pinner_of, (size_t)n, 16 * MIB, 4096);
    return NULL;
}
static void threads(void) {
    pthread_t all[4];
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, one_thread, (void *)(64 + 32 * i)) == 0);
    for (size_t i = 0; i < 4; i++) CHECK(pthread_join(all[i], NULL) == 0);
    for (size_t i = 0; i < 4; i++) dense(64 + 32 * i, 4 * MIB);
}

/* Blocks that one thread allocates and another frees, except for the pinner's. */
static size_t passed_count;
static void *free_passed(void *unused) {
    (void)unused;
    for (size_t i = 0; i < passed_count; i++) free(passed[i]);
    return NULL;
}
static void remote(void) {
    dense(96, 8 * MIB);
    for (size_t i = 0; i < 48 * MIB / 96; i++) {
        if (i % 42 == 7) keep(pinner_of(96));
        else passed[passed_count++] = freed_of(96);
    }
    pthread_t t;
    CHECK(pthread_create(&t, NULL, free_passed, NULL) == 0);
    CHECK(pthread_join(t, NULL) == 0);
    // The owner collects the remote frees.
    sparse(pinner_of, 96, MIB, 4096);
}

/* Many bytes from many stacks, all of them live and touched. */
static size_t more;
SITE static void fork_left(unsigned path, int depth);
SITE static void fork_right(unsigned path, int depth);
static void fork_on(unsigned path, int depth) {
    if (depth == 0) {
        size_t n = 24 + path * 37 % 2000;
        keep(filled(malloc(n), n));
        more += n;
    } else if (path >> (depth - 1) & 1) {
        fork_left(path, depth - 1);
    } else {
        fork_right(path, depth - 1);
    }
    __asm__ volatile("");
}
static void fork_left(unsigned path, int depth) { fork_on(path, depth); __asm__ volatile(""); }
static void fork_right(unsigned path, int depth) { fork_on(path, depth); __asm__ volatile(""); }
static void big(size_t bytes) {
    for (unsigned i = 0; more < bytes / 4; i++) fork_on(i % 512, 9);
    for (size_t left = bytes - more; left > MIB; left -= 60000) {
        if (count >= KEPT) break;
        keep(filled(malloc(60000), 60000));
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Blocks of a kind that is pinned already, enough to fill 8 MiB, in small steps. */
SITE static void *served_of(size_t n) { void *p = filled(malloc(n), n); return p; }
static void serve(void) {
    for (size_t i = 0; i < 8 * MIB / 1024; i++) {
        for (int k = 0; k < 8; k++) keep(served_of(128));
        if (i % 64 == 0) usleep(1000);
    }
    pause();
}

/* Runs until its input ends; prints the longest time for which it was stopped. */
static void beat(void) {
    double longest = 0, before = seconds();
    for (char byte;; ) {
        struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
        double now = seconds();
        if (now - before > longest) longest = now - before;
        before = now;
        struct pollfd input = {0, POLLIN, 0};
        if (poll(&input, 1, 0) > 0 && read(0, &byte, 1) <= 0) break;
    }
    dprintf(1, "longest %.6f\n", longest);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"page_64", page_64}, {"page_512", page_512}, {"page_1500", page_1500}, {"page_6000", page_6000},
        {"far_48", far_48}, {"text_200", text_200}, {"mixed", mixed}, {"threads", threads}, {"remote", remote},
        {"serves", page_64},
    };
    CHECK(argc >= 2);
    kept = shared(KEPT);
    passed = shared(KEPT);
    int known = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name)) continue;
        cases[i].run();
        known = 1;
    }
    if (!strcmp(argv[1], "big")) {
        big(strtoull(argv[2], NULL, 10) * MIB);
        known = 1;
    }
    CHECK(known);
    malloc_trim(0);
    dprintf(1, "live %zu\n", (size_t)live);
    // A program that does something else for a while.
    if (argc > 2 && !strcmp(argv[2], "stays")) usleep(2000000);
    char byte;
    if (read(0, &byte, 1) == 1) {
        if (byte == 'g') serve();
        beat();
    }
    return 0;
}
