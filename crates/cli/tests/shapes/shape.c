/* A process of a shape, which is named by its first argument. It holds 32 MiB in blocks of hold_rows, replaces some of
   them all the time, and touches fresh memory. Prints its process, and ends with its input. The second argument is a
   folder, the third a library with hold_rows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#define ROWS 8192

#ifdef LIBRARY
static void *rows[ROWS];
static int next;
/* Otherwise the compiler leaves the calls out. */
static void *volatile last;
__attribute__((noinline)) void hold_rows(int count) {
    for (int i = 0; i < count; i++) {
        free(rows[next]);
        rows[next] = malloc(4096);
        *(char *)rows[next] = 1;
        next = (next + 1) % ROWS;
    }
    /* It grows slowly, because a process in which no call leaves the caches of its threads answers no request. */
    static long grown;
    if (grown < 192 << 20) {
        for (int i = 0; i < 40; i++) last = malloc(700);
        grown += 40 * 700;
    }
}
__attribute__((noinline)) void touch_fresh(void) {
    char *at = mmap(0, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 65536; i += 4096) at[i] = 1;
    munmap(at, 65536);
}
#else
extern void hold_rows(int count) __attribute__((weak));
static void (*hold)(int);
static void (*touch)(void);

static void fail(const char *what) {
    perror(what);
    exit(1);
}
static void load(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    hold = dlsym(library, "hold_rows");
    touch = dlsym(library, "touch_fresh");
}
static void say(int pid) {
    printf("%d\n", pid);
    fflush(stdout);
}
/* Ends with the input. */
__attribute__((noinline)) static void work(void) {
    char byte;
    fcntl(0, F_SETFL, O_NONBLOCK);
    while (read(0, &byte, 1) != 0) {
        hold(400);
        touch();
        usleep(2000);
    }
    _exit(0);
}
static void *other(void *shape) {
    hold(ROWS);
    say(getpid());
    work();
    return shape;
}
#ifdef __x86_64__
/* Compiles a function that calls `hold`, as a JIT compiler does, and names it in the perf map. */
static void compiled(void) {
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char begin[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8}, end[] = {0xff, 0xd0, 0x5d, 0xc3};
    memcpy(code, begin, 6);
    memcpy(code + 6, &hold, 8);
    memcpy(code + 14, end, 4);
    hold = (void (*)(int))code;
    char name[64];
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx 12 compiled_code\n", (long)code);
    fclose(map);
}
#else
static void compiled(void) { exit(1); }
#endif
static void *elsewhere(void *unused) {
    /* A thread with a root, folder and mounts of its own. */
    if (unshare(CLONE_FS | CLONE_NEWNS) || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) || chroot("/proc")) fail("unshare");
    pause();
    return unused;
}
int main(int count, char **words) {
    const char *shape = words[1];
    pthread_t thread;
    if (!strcmp(shape, "relative")) {
        if (chdir(words[2])) fail("chdir");
        load("./librows.so");
        if (chdir("/")) fail("chdir");
    } else {
        load(words[3]);
    }
    if (!strcmp(shape, "first")) {
        pthread_create(&thread, 0, other, 0);
        pthread_exit(0);
    }
    if (!strcmp(shape, "chroot") && (chroot(words[2]) || chdir("/"))) fail("chroot");
    if (!strcmp(shape, "deleted") && (unlink(words[3]) || unlink(words[0]))) fail("unlink");
    if (!strcmp(shape, "compiled")) compiled();
    if (!strcmp(shape, "threads")) pthread_create(&thread, 0, elsewhere, 0);
    if (!strcmp(shape, "setuid") && setuid(65534)) fail("setuid");
    if (!strcmp(shape, "forked")) {
        hold(ROWS);
        int ready[2];
        if (pipe(ready)) fail("pipe");
        int child = fork();
        if (child) {
            char byte;
            if (read(ready[0], &byte, 1) != 1) fail("read");
            say(child);
            wait(0);
            _exit(0);
        }
        /* It takes more than the 8 MiB from which on it has counters of its own. */
        for (int i = 0; i < 600; i++) hold(1);
        if (write(ready[1], "", 1) != 1) fail("write");
        work();
    }
    if (!strcmp(shape, "namespaces")) {
        if (unshare(CLONE_NEWPID | CLONE_NEWNS) || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)) fail("unshare");
        int ready[2];
        if (pipe(ready)) fail("pipe");
        int child = fork();
        if (child) {
            char byte;
            if (read(ready[0], &byte, 1) != 1) fail("read");
            say(child);
            wait(0);
            _exit(0);
        }
        /* Its files are hidden under another file system. */
        if (mount("none", words[2], "tmpfs", 0, 0)) fail("mount");
        hold(ROWS);
        if (write(ready[1], "", 1) != 1) fail("write");
        work();
    }
    hold(ROWS);
    say(getpid());
    work();
}
#endif
