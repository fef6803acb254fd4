// Allocates in functions of known names, touches the blocks, and prints what they are: PID ADDRESS SIZE FUNCTION.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define SITE __attribute__((noinline, noclone))

// Printed at the end, because stdio allocates.
static struct said { char *p; size_t n; const char *who; } all[100000];
static volatile int count;

static void said(void *p, size_t n, const char *who) {
    int i = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    if (i < 100000) all[i] = (struct said){p, n, who};
}

static void tell(int from) {
    static char text[200];
    for (int i = from; i < count; i++) {
        int n = snprintf(text, sizeof text, "block %d %p %zu %s\n", (int)getpid(), (void *)all[i].p, all[i].n, all[i].who);
        if (write(1, text, n) != n) _exit(3);
    }
}

static char *touch(char *p, size_t n) {
    if (!p) _exit(2);
    memset(p, 1, n);
    return p;
}

SITE char *alloc_a(size_t n) { char *p = touch(malloc(n), n); said(p, n, "alloc_a"); return p; }
SITE char *alloc_b(size_t n) { char *p = touch(calloc(1, n), n); said(p, n, "alloc_b"); return p; }
SITE char *alloc_c(char *q, size_t n) { char *p = touch(realloc(q, n), n); said(p, n, "alloc_c"); return p; }
SITE char *alloc_d(size_t align, size_t n) {
    void *p = NULL;
    if (posix_memalign(&p, align, n)) _exit(2);
    said(touch(p, n), n, "alloc_d");
    return p;
}
SITE char *alloc_e(size_t n) {
    char *p = touch(aligned_alloc(64, n), n);
    said(p, n, "alloc_e");
    return p;
}
// The C library allocates for this function.
SITE char *alloc_f(const char *text) { char *p = strdup(text); said(p, strlen(text) + 1, "alloc_f"); return p; }
SITE char *alloc_handler(size_t n) { char *p = touch(malloc(n), n); said(p, n, "alloc_handler"); return p; }
SITE char *alloc_thread(size_t n) { char *p = touch(malloc(n), n); said(p, n, "alloc_thread"); return p; }
SITE char *alloc_child(size_t n) { char *p = touch(malloc(n), n); said(p, n, "alloc_child"); return p; }

static void kinds(void) {
    static char text[70000];
    memset(text, 'x', sizeof text - 1);
    for (size_t n = 1; n < 40000; n += n / 4 + 1) {
        for (int i = 0; i < 3; i++) { alloc_a(n); alloc_b(n); alloc_c(NULL, n); alloc_d(256, n); }
    }
    alloc_e(640), alloc_e(20480), alloc_f(text);
    alloc_a(1000000), alloc_b(1200000), alloc_d(1 << 20, 300000), alloc_e(1 << 20);
    // Growth in place, by copying, and by moving pages.
    char *p = alloc_a(50000);
    for (size_t n = 60000; n < 3000000; n += n / 2) p = alloc_c(p, n);
    // Freed, and reused for other sites' blocks.
    for (int i = 0; i < 20; i++) free(alloc_a(100000 + i * 5000)), free(alloc_b(90000 + i * 7000));
    tell(0);
}

static void *thread(void *unused) {
    (void)unused;
    for (int i = 0; i < 50; i++) alloc_thread(300 + i * 1000);
    return NULL;
}

static void threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, thread, NULL);
    for (int i = 0; i < 50; i++) alloc_a(300 + i * 1000);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    tell(0);
}

static void forks(void) {
    char *before = alloc_a(400000);
    alloc_a(100);
    int mine = count;
    if (fork() == 0) {
        // Copies of the parent's block; then blocks where the parent has other ones.
        memset(before, 2, 400000);
        for (int i = 0; i < 20; i++) alloc_child(20000 + i * 1000);
        tell(0);
        if (fork() == 0) {
            memset(before, 3, 400000);
            tell(0);
            _exit(0);
        }
        wait(NULL);
        _exit(0);
    }
    for (int i = 0; i < 20; i++) alloc_b(20000 + i * 1000);
    wait(NULL);
    (void)mine;
    tell(0);
}

static volatile sig_atomic_t handled;
static void handler(int unused) {
    (void)unused;
    handled++;
    alloc_handler(100 + handled % 7 * 8000);
}

static void signals(void) {
    signal(SIGALRM, handler);
    struct itimerval every = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int count = 0; handled < 300;) {
        // Of a size that the handler does not use, and slowly enough for the reader.
        char *volatile p = malloc(1000);
        free(p);
        for (volatile int i = 0; i < 1000; i++) {}
        if (++count % 100 == 0) usleep(1000);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    alloc_a(50000);
    tell(0);
}

// Calls malloc with an invalid frame pointer, from code that no unwind table describes.
static char *machine;
static void garbage_here(void) {
    uintptr_t sp = (uintptr_t)__builtin_frame_address(0);
    uintptr_t values[] = {0, 1, 7, 8, ~0ul, ~7ul, sp, sp + 1, sp + 8, sp - 8, sp + 4096, sp + (1 << 16), sp + (1 << 20),
                          (uintptr_t)machine, (uintptr_t)&machine, 0x7ffffffff000, 0xffff800000000000};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        void *p = ((void *(*)(size_t, uintptr_t, void *(*)(size_t)))machine)(3000, values[i], malloc);
        touch(p, 3000);
        for (uintptr_t at = sp - 64; at < sp + 64; at += 8) {
            free(((void *(*)(size_t, uintptr_t, void *(*)(size_t)))machine)(3000, at, malloc));
        }
    }
}
static void *garbage_thread(void *unused) {
    (void)unused;
    garbage_here();
    return NULL;
}
static void garbage(void) {
    // push rbp; mov rbp, rsi; call rdx; pop rbp; ret
    static const char code[] = "\x55\x48\x89\xf5\xff\xd2\x5d\xc3";
    machine = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(machine, code, sizeof code);
    garbage_here();
    pthread_t t;
    pthread_create(&t, NULL, garbage_thread, NULL);
    pthread_join(t, NULL);
    // A stack with unmapped memory above it.
    char *stack = mmap(NULL, 3 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(stack + (2 << 16), 1 << 16);
    static ucontext_t back, there;
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = 2 << 16;
    there.uc_link = &back;
    makecontext(&there, garbage_here, 0);
    swapcontext(&back, &there);
    alloc_a(50000);
    tell(0);
}

static void many(void) {
    for (int i = 0; i < 40000; i++) free(malloc(64));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "kinds")) kinds();
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "forks")) forks();
    else if (!strcmp(what, "signals")) signals();
    else if (!strcmp(what, "garbage")) garbage();
    else if (!strcmp(what, "many")) many();
    else return 1;
    return 0;
}
