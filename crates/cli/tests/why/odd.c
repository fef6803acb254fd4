/* A process that is odd in one way, named by its argument. Prints its process, obeys a byte of its input as plant.c does,
   and ends with its input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

/* The root of a tree as jemalloc has it; its files have this text. */
const char text[] = "jemalloc";
uint64_t root[1 << 18] __attribute__((aligned(4096)));

/* All of the root leads to one leaf, all of whose words to one of two records. */
static void leaf(void) {
    uint64_t *leaf = mmap((void *)0x7e0000000000, 4 << 20, 3, ANON | MAP_FIXED, -1, 0);
    uint64_t *record = mmap((void *)0x7e1000000000, 4096, 3, ANON | MAP_FIXED, -1, 0);
    char *extent = mmap((void *)0x40010000, 4096, 3, ANON | MAP_FIXED, -1, 0);
    *extent = 1;
    record[0] = 1 << 20;
    record[1] = (uint64_t)extent;
    record[2] = 4096;
    for (int i = 16; i < 1 << 14; i++) leaf[i] = ((uint64_t)record + 128 * (i & 1)) | 1UL << 48;
    for (int i = 1; i < 1 << 18; i++) root[i] = (uint64_t)leaf;
}
/* Files that are mapped and never touched, in a folder. */
static void untouched(const char *folder) {
    for (int i = 0; i < 64; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%d", folder, i);
        int file = open(name, O_RDWR | O_CREAT, 0600);
        if (ftruncate(file, 1 << 20)) exit(1);
        mmap(0, 1 << 20, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
}
/* The first OS page of the lowest mapping is not touched, the second one is. */
static void gap(void) {
    char *low = mmap((void *)0x100000, 8192, 3, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    if (low == (void *)0x100000) low[4096] = 1;
}
/* A large sparse file, mapped privately as models are. */
static void sparse(const char *folder) {
    char name[4096];
    snprintf(name, sizeof name, "%s/sparse", folder);
    int file = open(name, O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, 1L << 40)) exit(1);
    char *at = mmap(0, 1L << 40, 3, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) exit(1);
    *at = 1;
    unlink(name);
}
/* 16 MiB of one file in memory at three addresses, all touched. */
static void thrice(void) {
    int file = memfd_create("thrice", 0);
    if (ftruncate(file, 16 << 20)) exit(1);
    for (int i = 0; i < 3; i++) memset(mmap(0, 16 << 20, 3, MAP_SHARED, file, 0), 1, 16 << 20);
}
/* A file that is written through a mapping, and one of which a part was copied. */
static void dirty(const char *folder) {
    char name[4096];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, i ? "copied" : "written");
        int file = open(name, O_RDWR | O_CREAT, 0600);
        if (ftruncate(file, 8 << 20)) exit(1);
        memset(mmap(0, 8 << 20, 3, i ? MAP_PRIVATE : MAP_SHARED, file, 0), 1, i ? 1 << 20 : 8 << 20);
    }
}
/* Threads on stacks in blocks of malloc, one of them in an arena that has 20 MiB of other blocks. */
static void *sleeper(void *said) {
    volatile char used[16 << 10];
    for (int i = 0; i < sizeof used; i += 4096) used[i] = 1;
    __atomic_add_fetch((int *)said, 1, __ATOMIC_RELEASE);
    pause();
    return 0;
}
static void on_block(size_t bytes, int *said) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, aligned_alloc(4096, bytes), bytes);
    pthread_create(&thread, &attributes, sleeper, said);
}
static void *in_arena(void *said) {
    for (int i = 0; i < 20000; i++) memset(malloc(1000), 1, 1000);
    on_block(64 << 10, said);
    pause();
    return 0;
}
static void stacks(void) {
    static int said;
    pthread_t thread;
    on_block(8 << 20, &said);
    pthread_create(&thread, 0, in_arena, &said);
    while (__atomic_load_n(&said, __ATOMIC_ACQUIRE) < 2) usleep(1000);
    usleep(50000);
}
/* A child that has its parent's memory, until it ends. */
static void borrow(void) {
    if (vfork() == 0) {
        char text[16];
        write(1, text, snprintf(text, sizeof text, "%d\n", getpid()));
        char byte;
        while (read(0, &byte, 1) == 1) {}
        _exit(0);
    }
    _exit(0);
}
static void obey(void) {
    char byte;
    while (read(0, &byte, 1) == 1) {
        if (byte == 'e') {
            execl("/proc/self/exe", "odd", "again", (char *)0);
            exit(1);
        }
        puts("done");
        fflush(stdout);
    }
    _exit(0);
}
static void *rest(void *unused) {
    memset(malloc(40 << 20), 1, 40 << 20);
    printf("%d\n", getpid());
    fflush(stdout);
    obey();
    return unused;
}
int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    if (!strcmp(how, "first")) {
        pthread_t thread;
        pthread_create(&thread, 0, rest, 0);
        pthread_exit(0);
    }
    if (!strcmp(how, "leaf")) leaf();
    if (!strcmp(how, "untouched")) untouched(words[2]), gap();
    if (!strcmp(how, "thrice")) thrice();
    if (!strcmp(how, "dirty")) dirty(words[2]);
    if (!strcmp(how, "stacks")) stacks();
    if (!strcmp(how, "vfork")) borrow();
    if (!strcmp(how, "sparse")) sparse(words[2]);
    if (!strcmp(how, "name")) prctl(PR_SET_NAME, "\xff\xfe odd");
    if (strcmp(how, "again")) printf("%d\n", getpid());
    else puts("done");
    fflush(stdout);
    obey();
}
