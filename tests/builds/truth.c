/* Live and free blocks in one of 13 patterns, counted by the program itself. Prints "live LEAST MOST" and "ready", then
 * waits. All blocks are written. LEAST are the bytes that were requested, MOST those of the blocks: what
 * malloc_usable_size says and a header, and for blocks aligned to OS pages or more the OS pages that they touch. */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 12, EACH = 20000, PAGE = 4096, HEADER = 16 };

struct block {
    void *at;
    uint32_t size, whole;
};

static _Atomic long least, most;
static const char *pattern;
static pthread_barrier_t done;
static struct block *of_thread[THREADS];
static __thread uint64_t state = 88172645463325252u;

static uint32_t chance(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 11);
}

static uint32_t between(uint32_t low, uint32_t high) { return low + chance() % (high - low + 1); }

static struct block *table(size_t count) {
    return mmap(NULL, count * sizeof(struct block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void count(struct block *block, size_t size, size_t alignment) {
    size_t usable = malloc_usable_size(block->at);
    block->size = size;
    block->whole = alignment >= PAGE ? (size + PAGE - 1) / PAGE * PAGE + HEADER : (usable > size ? usable : size) + HEADER;
    memset(block->at, 0x5a, size);
    least += block->size;
    most += block->whole;
}

static void get(struct block *block, size_t size) {
    block->at = malloc(size);
    count(block, size, 1);
}

static void get_aligned(struct block *block, size_t alignment, size_t size) {
    if (posix_memalign(&block->at, alignment, size)) abort();
    count(block, size, alignment);
}

static void put(struct block *block) {
    if (!block->at) return;
    least -= block->size;
    most -= block->whole;
    free(block->at);
    block->at = NULL;
}

static void *work(void *number) {
    size_t own = (size_t)number;
    struct block *blocks = of_thread[own];
    state = 0x9E3779B97F4A7C15u * (own + 1);
    for (int i = 0; i < EACH; i++) get(&blocks[i], chance() % 16 ? between(8, 1000) : between(1000, 30000));
    for (int i = 0; i < EACH; i++)
        if (chance() % 2) put(&blocks[i]);
    pthread_barrier_wait(&done);
    if (!strcmp(pattern, "exited")) return NULL;
    if (!strcmp(pattern, "cross")) {
        struct block *next = of_thread[(own + 1) % THREADS];
        for (int i = 0; i < EACH; i++)
            if (chance() % 2) put(&next[i]);
    }
    pthread_barrier_wait(&done);
    for (;;) pause();
}

static void *cache(void *none) {
    for (int size = 24; size <= 1032; size += 16) {
        struct block blocks[7];
        for (int i = 0; i < 7; i++) get(&blocks[i], size);
        for (int i = 0; i < 7; i++) put(&blocks[i]);
    }
    pthread_barrier_wait(&done);
    for (;;) pause();
    return none;
}

static void threads(void) {
    pthread_t thread[THREADS];
    int ends = !strcmp(pattern, "exited");
    pthread_barrier_init(&done, NULL, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++) of_thread[i] = table(EACH);
    for (size_t i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, work, (void *)i);
    pthread_barrier_wait(&done);
    if (!ends) pthread_barrier_wait(&done);
    for (int i = 0; i < THREADS && ends; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS && ends; i++)
        for (int k = 0; k < EACH; k += 3) put(&of_thread[i][k]);
}

/* One thread: so many blocks of sizes in a range; frees those that `frees` says: of each number all but the last one, by
 * chance if it is negative. */
static void blocks(size_t number, uint32_t low, uint32_t high, int frees) {
    struct block *all = table(number);
    for (size_t i = 0; i < number; i++) get(&all[i], between(low, high));
    for (size_t i = 0; i < number && frees; i++)
        if (frees > 0 ? i % frees : chance() % -frees) put(&all[i]);
}

static void aligned(void) {
    size_t number = 20000;
    struct block *all = table(number);
    for (size_t i = 0; i < number; i++) {
        uint32_t of = chance() % 100;
        get_aligned(&all[i], of < 50 ? 64 : of < 95 ? PAGE : of < 99 ? 65536 : 2 << 20, between(16, 6000));
    }
    for (size_t i = 0; i < number; i++)
        if (chance() % 2) put(&all[i]);
}

static void grown(void) {
    size_t number = 2000;
    struct block *all = table(number);
    for (size_t i = 0; i < number; i++) get(&all[i], 16);
    for (int round = 0; round < 10; round++)
        for (size_t i = 0; i < number; i++) {
            size_t size = all[i].size * 2 + between(0, 16);
            if (size > 30000) continue;
            least -= all[i].size;
            most -= all[i].whole;
            all[i].at = realloc(all[i].at, size);
            count(&all[i], size, 1);
        }
}

int main(int argc, char **argv) {
    pattern = argc > 1 ? argv[1] : "";
    if (!strcmp(pattern, "small")) blocks(300000, 8, 512, 0);
    else if (!strcmp(pattern, "fragments")) blocks(300000, 8, 512, -3);
    else if (!strcmp(pattern, "freed")) blocks(300000, 8, 512, 1000);
    else if (!strcmp(pattern, "class")) blocks(400000, 48, 48, 8);
    else if (!strcmp(pattern, "medium")) blocks(3000, 1024, 65536, -2);
    else if (!strcmp(pattern, "large")) blocks(800, 40000, 400000, -2);
    else if (!strcmp(pattern, "huge")) blocks(40, 1 << 20, 8 << 20, 3);
    else if (!strcmp(pattern, "aligned")) aligned();
    else if (!strcmp(pattern, "grown")) grown();
    else if (!strcmp(pattern, "threads") || !strcmp(pattern, "exited") || !strcmp(pattern, "cross")) threads();
    else if (!strcmp(pattern, "caches")) {
        pthread_barrier_init(&done, NULL, 101);
        for (int i = 0; i < 100; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, cache, NULL);
        }
        pthread_barrier_wait(&done);
    } else return 2;
    printf("live %ld %ld\nready\n", least, most);
    fflush(stdout);
    getchar();
    return 0;
}
