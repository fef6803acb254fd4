/* Random stress for as many seconds as the first argument says: all sizes, all functions, threads that come and
 * go, blocks freed by others, contents checked by pattern. With a second argument, also a fork this many milliseconds
 * after the last. */
#include "check.h"
#include <malloc.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

enum { SLOTS = 4096, LIVES = 6 };
struct block { size_t size; uint64_t seed; unsigned char data[]; };
static struct block *_Atomic slot[SLOTS];
static _Atomic uint64_t operations;
static time_t end;

static size_t random_size(uint64_t r) {
    unsigned shape = r % 1000;
    if (shape < 700) return (r >> 10) % 256;
    if (shape < 950) return (r >> 10) % 4096;
    if (shape < 990) return (r >> 10) % 65536;
    if (shape < 999) return (r >> 10) % (1u << 20);
    return (r >> 10) % (12u << 20);
}

/* Large blocks are checked at their ends and at one byte in each 1024 between. */
static void mark(struct block *b, size_t from) {
    for (size_t i = from; i < b->size; i += b->size > 8192 ? 1024 : 1) b->data[i] = (unsigned char)(b->seed + i);
    if (b->size) b->data[b->size - 1] = (unsigned char)b->seed;
}
static void check(const struct block *b, size_t size, int whole) {
    size_t step = b->size > 8192 ? 1024 : 1, last = b->size - 1;
    for (size_t i = 0; i < size; i += step)
        CHECK_AT(i == last || b->data[i] == (unsigned char)(b->seed + i), b->size);
    if (whole && b->size) CHECK_AT(b->data[last] == (unsigned char)b->seed, b->size);
}

static struct block *take(uint64_t *state) {
    uint64_t r = next_random(state);
    size_t size = random_size(next_random(state)), whole = size + sizeof(struct block);
    size_t alignment = (size_t)16 << (r >> 8) % ((r >> 30) % 64 ? 9 : 18);
    void *p = NULL;
    switch (r % 8) {
    case 0: p = calloc(1, whole); break;
    case 1: p = aligned_alloc(alignment, whole); break;
    case 2: CHECK(posix_memalign(&p, alignment, whole) == 0); break;
    case 3: p = realloc(NULL, whole); break;
    default: p = malloc(whole);
    }
    CHECK_AT(p, whole);
    CHECK_AT((uintptr_t)p % (r % 8 == 1 || r % 8 == 2 ? alignment : 16) == 0, whole);
    CHECK_AT(malloc_usable_size(p) >= whole, whole);
    if (r % 8 == 0)
        for (size_t i = 0; i < whole; i += whole > 65536 ? 509 : 1) CHECK_AT(((char *)p)[i] == 0, whole);
    struct block *b = p;
    b->size = size;
    b->seed = r;
    mark(b, 0);
    return b;
}

static void *life(void *arg) {
    uint64_t state = (uintptr_t)arg * 0x9E3779B97F4A7C15ull + 1;
    long steps = 20000 + next_random(&state) % 200000;
    for (long step = 0; step < steps && time(NULL) < end; step++) {
        uint64_t r = next_random(&state);
        struct block *b = atomic_exchange(&slot[r % SLOTS], NULL);
        atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
        if (b) check(b, b->size, 1);
        if (b && (r >> 20) % 4 == 0) {
            size_t old = b->size, size = random_size(next_random(&state));
            b = realloc(b, size + sizeof *b);
            CHECK_AT(b, size);
            if (old <= 8192) check(b, size < old ? size : old, 0);
            b->size = size;
            mark(b, 0);
        } else {
            free(b);
            b = take(&state);
        }
        free(atomic_exchange(&slot[(r >> 32) % SLOTS], b));
    }
    return NULL;
}

/* Each child does a little of the same; the memory that its parent's other threads held is lost to it. */
static void *forks(void *arg) {
    uint64_t state = 77;
    for (int children = 0; time(NULL) < end; children++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(120);
            for (int i = 0; i < 50; i++) {
                struct block *b = take(&state);
                check(b, b->size, 1);
                free(b);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_AT(status == 0, status);
        usleep(1000 * (uintptr_t)arg);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t forker;
    end = time(NULL) + (argc > 1 ? atol(argv[1]) : 10);
    pthread_t t[LIVES];
    uintptr_t born = 0;
    for (int i = 0; i < LIVES; i++) CHECK(pthread_create(&t[i], NULL, life, (void *)++born) == 0);
    if (argc > 2) CHECK(pthread_create(&forker, NULL, forks, (void *)atol(argv[2])) == 0);
    for (int i = 0; time(NULL) < end; i = (i + 1) % LIVES) {
        CHECK(pthread_join(t[i], NULL) == 0);
        CHECK(pthread_create(&t[i], NULL, life, (void *)++born) == 0);
    }
    for (int i = 0; i < LIVES; i++) CHECK(pthread_join(t[i], NULL) == 0);
    if (argc > 2) CHECK(pthread_join(forker, NULL) == 0);
    for (int i = 0; i < SLOTS; i++) {
        if (slot[i]) check(slot[i], slot[i]->size, 1);
        free(slot[i]);
    }
    printf("%llu operations by %llu threads, RSS %ld KiB\nok\n", (unsigned long long)operations,
           (unsigned long long)born, status_kib("VmRSS:"));
    return 0;
}
