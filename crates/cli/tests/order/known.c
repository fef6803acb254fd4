/* What each argument does is what the tests of `neap order` expect. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
#define FUNCTION __attribute__((noinline, noclone))
static volatile int count;
/* Each alone on its OS page. */
static volatile char written[3 * 4096] __attribute__((aligned(4096))) = { 1 };
static const char read_only[3 * 4096] __attribute__((aligned(4096))) = { 2 };
static volatile char untouched[3 * 4096] __attribute__((aligned(4096), used)) = { 3 };

FUNCTION void third(void) { count++; }
FUNCTION void second(void) { count++; third(); }
FUNCTION void first(void) { count++; second(); }
FUNCTION void never(void) { count++; }
FUNCTION void second_place(void) { count = 11; }
FUNCTION void only_child(void) { count++; }
FUNCTION void only_after(void) { count++; }
FUNCTION static void handler(int number) { count += number; }
static volatile int ticks;
static void tick(int number) { (void)number; ticks++; }
FUNCTION static int resolved(void) { return 7; }
FUNCTION static int (*resolver(void))(void) { return resolved; }
int chosen(void) __attribute__((ifunc("resolver")));
__attribute__((constructor)) static void early(void) { count++; }

static pthread_barrier_t barrier;
#define F(n) FUNCTION void together_##n(void) { count++; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
static void (*const together[])(void) = { together_0, together_1, together_2, together_3, together_4,
                                          together_5, together_6, together_7, together_8, together_9 };
static void *thread(void *unused) {
    (void)unused;
    for (int i = 0; i < 10; i++) {
        pthread_barrier_wait(&barrier);
        together[i]();
    }
    return NULL;
}

static void ended(pid_t pid, const char *how) {
    int status = 0;
    waitpid(pid, &status, 0);
    printf("%s %x\n", how, status);
    fflush(stdout);
}

static void *nothing(void *unused) { return unused; }
static void *forks(void *unused) {
    (void)unused;
    for (;;) {
        pid_t pid = fork();
        if (!pid) { first(); _exit(3); }
        waitpid(pid, NULL, 0);
    }
}
static void *storm(void *program) {
    char *child[] = { program, "plain", NULL };
    for (int i = 0; i < 20; i++) {
        pthread_t one;
        pthread_create(&one, NULL, nothing, NULL);
        pid_t pid;
        if (i % 4 == 0 && !posix_spawn(&pid, program, NULL, NULL, child, environ)) waitpid(pid, NULL, 0);
        pthread_join(one, NULL);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "plain";
    if (!strcmp(how, "plain")) {
        first();
        written[5000] = *(const volatile char *)&read_only[5000];
        printf("%d %d\n", count, chosen());
        return 3;
    }
    if (!strcmp(how, "threads")) {
        pthread_t all[8];
        pthread_barrier_init(&barrier, NULL, 8);
        for (int i = 0; i < 8; i++) pthread_create(&all[i], NULL, thread, NULL);
        for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
        puts("threads");
        return 0;
    }
    if (!strcmp(how, "undumpable")) {
        prctl(PR_SET_DUMPABLE, 0);
        for (int i = 0; i < 3; i++) {
            pid_t pid = fork();
            if (!pid) { first(); only_child(); _exit(prctl(PR_GET_DUMPABLE) + 5); }
            ended(pid, "undumpable");
        }
        only_after();
        return 0;
    }
    if (!strcmp(how, "fork")) {
        pid_t pid = fork();
        if (!pid) { first(); only_child(); _exit(count > 3 ? 5 : 6); }
        ended(pid, "fork");
        pid = vfork();
        if (!pid) { execl("/bin/sh", "sh", "-c", "echo vfork; exit 4", NULL); _exit(1); }
        ended(pid, "vfork");
        char *child[] = { argv[0], "plain", NULL };
        if (posix_spawn(&pid, argv[0], NULL, NULL, child, environ)) return 1;
        ended(pid, "spawn");
        pid = fork();
        if (!pid) { execl(argv[0], argv[0], "plain", NULL); _exit(1); }
        ended(pid, "exec");
        only_after();
        return 0;
    }
    if (!strcmp(how, "signals")) {
        signal(SIGTRAP, handler);
        signal(SIGUSR1, handler);
        raise(SIGUSR1);
        raise(SIGTRAP);
        __asm__ volatile("int3");
        first();
        __asm__ volatile("int3");
        printf("%d\n", count);
        fflush(stdout);
        raise(SIGSEGV);
    }
    if (!strcmp(how, "again")) {
        first();
        fflush(stdout);
        execl("/proc/self/exe", argv[0], "plain", NULL);
    }
    if (!strcmp(how, "stop")) {
        first();
        raise(SIGSTOP);
        only_after();
        return 4;
    }
    if (!strcmp(how, "become")) {
        first();
        execl("/bin/sh", "sh", "-c", "echo become; exit 9", NULL);
    }
    if (!strcmp(how, "daemon")) {
        if (fork() == 0) {
            setsid();
            close(1);
            usleep(300000);
            only_child();
            FILE *file = fopen(argv[2], "w");
            fputs("done", file);
            fclose(file);
        }
        return 0;
    }
    if (!strcmp(how, "patch")) {
        /* A jump in the place of a function's first instructions. */
        char *code = (char *)third, jump[5] = { (char)0xe9 };
        int distance = (int)((char *)second_place - (code + sizeof jump));
        memcpy(jump + 1, &distance, sizeof distance);
        third();
        void *page = (void *)((uintptr_t)code & -4096);
        mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
        memcpy(code, jump, sizeof jump);
        mprotect(page, 8192, PROT_READ | PROT_EXEC);
        count = 0;
        pid_t pid = fork();
        if (!pid) { third(); _exit(count); }
        ended(pid, "patch");
        return 0;
    }
    if (!strcmp(how, "unload")) {
        /* Other memory where a library was. */
        void *library = dlopen(argv[2], RTLD_NOW);
        char *page = (char *)((uintptr_t)dlsym(library, "library_entry") & -4096);
        dlclose(library);
        if (mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != page) return 1;
        memset(page, 'x', 4096);
        pid_t pid = fork();
        if (!pid) {
            int others = 0;
            for (int i = 0; i < 4096; i++) others += page[i] != 'x';
            _exit(others);
        }
        ended(pid, "unload");
        return 0;
    }
    if (!strcmp(how, "waits")) {
        int status;
        while (wait(&status) > 0) if (status != 3 << 8) return 1;
        return 0;
    }
    if (!strcmp(how, "forks")) {
        pthread_t one;
        for (int i = 0; i < 4; i++) pthread_create(&one, NULL, forks, NULL);
        usleep(atoi(argv[2]));
        execl("/proc/self/exe", argv[0], "waits", NULL);
    }
    if (!strcmp(how, "storm")) {
        pthread_t all[4];
        for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, storm, argv[0]);
        for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
        only_after();
        return 0;
    }
    if (!strcmp(how, "ticks")) {
        struct itimerval each = { { 0, 97000 }, { 0, 97000 } };
        signal(SIGALRM, tick);
        setitimer(ITIMER_REAL, &each, NULL);
        while (ticks < 20) pause();
        puts("ticks");
        return 0;
    }
    if (!strcmp(how, "many")) {
        pid_t all[40];
        for (int i = 0; i < 40; i++) {
            if (!(all[i] = fork())) { usleep(500000); only_child(); _exit(0); }
        }
        for (int i = 0; i < 40; i++) ended(all[i], "many");
        return 0;
    }
    if (!strcmp(how, "load")) {
        void *library = dlopen(argv[2], RTLD_NOW);
        void (*function)(void) = (void (*)(void))dlsym(library, "library_entry");
        if (!function) { puts(dlerror()); return 1; }
        function();
        return 0;
    }
    return 2;
}
