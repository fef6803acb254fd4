/* Plants one cause of memory that stays, prints its process, and obeys bytes of its standard input, each of which it
   answers with a line: t malloc_trim, s stacks go back, g live memory grows by 1 MiB. Ends with its input. With a second argument "gone"
   its first thread has ended by then. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fcntl.h>
#define MIB ((size_t)1 << 20)
enum { THREADS = 16, MANY = 64 * 1024 };
static pthread_barrier_t barrier;
void *blocks[MANY];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
void *volatile keep[THREADS * 4];

static void fill(void **blocks, size_t count, size_t size) {
    for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(size), 1, size);
}
/* Takes 16 MiB in small blocks and frees them in its turn; a block on top keeps its arena from shrinking. */
static void *arena_thread(void *p) {
    size_t n = 16 * MIB / 1024;
    void **blocks = mmap(0, n * sizeof *blocks, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_lock(&turn);
    fill(blocks, n, 1000);
    keep[(size_t)p] = malloc(1000);
    for (size_t i = 0; i < n; i++) free(blocks[i]);
    pthread_mutex_unlock(&turn);
    munmap(blocks, n * sizeof *blocks);
    pthread_barrier_wait(&barrier);
    pause();
    return 0;
}
/* Fills its cache with 7 blocks of each size. */
static void *cache_thread(void *p) {
    void *blocks[7];
    for (size_t size = 24; size <= 1032; size += 16) {
        fill(blocks, 7, size);
        for (int i = 0; i < 7; i++) free(blocks[i]);
    }
    pthread_barrier_wait(&barrier);
    pause();
    return 0;
}
static void deep(size_t bytes) {
    volatile char *p = __builtin_alloca(bytes);
    for (size_t i = 0; i < bytes; i += 4096) p[i] = 1;
}
static void *stack_thread(void *p) {
    deep(2 * MIB);
    pthread_barrier_wait(&barrier);
    /* Until it is asked. A thread that sleeps shows where its stack pointer is; one that runs does not. */
    pthread_barrier_wait(&barrier);
    pthread_attr_t attr;
    void *low;
    size_t size;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &low, &size);
    char *here = (char *)((size_t)__builtin_frame_address(0) & -4096) - 16384;
    madvise(low, here - (char *)low, MADV_DONTNEED);
    pthread_barrier_wait(&barrier);
    pause();
    return 0;
}
static void threads(int count, void *(*run)(void *)) {
    pthread_barrier_init(&barrier, 0, count + 1);
    for (int i = 0; i < count; i++) {
        pthread_t t;
        pthread_create(&t, 0, run, (void *)(size_t)i);
    }
    pthread_barrier_wait(&barrier);
    usleep(50000);
}
/* Begins where an arena of glibc would: the kernel places a mapping there by chance. */
static char *area(size_t bytes) {
    char *p = mmap(0, bytes + 64 * MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (char *)(((size_t)p + 64 * MIB - 1) & -(64 * MIB));
}
/* What it does once its cause is planted. */
static void *obey(void *unused) {
    printf("%d\n", getpid());
    fflush(stdout);
    for (int c; (c = getchar()) != EOF;) {
        if (c == 't') malloc_trim(0);
        if (c == 's') { pthread_barrier_wait(&barrier); pthread_barrier_wait(&barrier); }
        if (c == 'g') fill(blocks, 1024, 1000);
        printf("done\n");
        fflush(stdout);
    }
    exit(0);
}
int main(int argc, char **argv) {
    const char *what = argv[1];
    if (!strcmp(what, "leak")) {
        fill(blocks, MANY, 1000);
    } else if (!strcmp(what, "arenas")) {
        threads(THREADS, arena_thread);
    } else if (!strcmp(what, "top")) {
        fill(blocks, MANY, 1000);
        void *last = malloc(1000);
        for (int i = 0; i < MANY; i++) free(blocks[i]);
        keep[0] = last;
    } else if (!strcmp(what, "tcache")) {
        threads(400, cache_thread);
    } else if (!strcmp(what, "fragmentation")) {
        fill(blocks, MANY, 1000);
        for (int i = 0; i < MANY; i++) if (i % 4) free(blocks[i]);
    } else if (!strcmp(what, "huge")) {
        if (argc > 2) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        char *p = area(64 * MIB);
        madvise(p, 64 * MIB, MADV_HUGEPAGE);
        for (size_t i = 0; i < 64 * MIB; i += 2 * MIB) memset(p + i, 1, 64 * 1024);
    } else if (!strcmp(what, "zeros")) {
        /* Uses all of it, for zeros: in small blocks, or in one. */
        for (int i = 0; argc == 2 && i < MANY; i++) memset(blocks[i] = malloc(1000), 0, 1000);
        char *p = argc > 2 ? aligned_alloc(2 * MIB, 64 * MIB) : 0;
        if (p) madvise(p, 64 * MIB, MADV_HUGEPAGE), memset(p, 1, 64 * MIB), memset(p, 0, 64 * MIB), blocks[0] = p;
    } else if (!strcmp(what, "stacks")) {
        threads(32, stack_thread);
    } else if (!strcmp(what, "fork")) {
        fill(blocks, MANY, 1000);
        if (fork()) { wait(0); return 0; }
        /* Writes to a quarter of it. */
        int writes = argc > 2 && !strcmp(argv[2], "write");
        for (int i = 0; writes && i < MANY / 4; i++) memset(blocks[i], 2, 1000);
        /* Takes nearly as much of its own. */
        if (argc > 2 && !writes) fill(blocks, MANY * 9 / 10, 1000);
    } else if (!strcmp(what, "region")) {
        char *p = memset(mmap(0, 32 * MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 32 * MIB);
        prctl(0x53564d41 /* PR_SET_VMA */, 0, p, 32 * MIB, "tcmalloc_region_NORMAL");
    } else if (!strcmp(what, "locked")) {
        char *p = mmap(0, 64 * MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (argc > 2) mlock2(p, 64 * MIB, MLOCK_ONFAULT); else mlock(p, 64 * MIB);
        memset(p, 1, 8 * MIB);
    }
    if (argc > 2 && !strcmp(argv[2], "gone")) {
        pthread_t other;
        pthread_create(&other, 0, obey, 0);
        pthread_exit(0);
    }
    return obey(0) != 0;
}
