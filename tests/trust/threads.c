/* Threads whose first call comes as they end: the C library frees a thread's own data after its key destructors. */
#include "trust.h"
#include "../../include/neap.h"
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

static void *wait_a_little(void *unused) {
    usleep(2000);
    return unused;
}

static void burst(size_t stack) {
    pthread_attr_t attributes;
    pthread_t t;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
    if (stack) CHECK(pthread_attr_setstacksize(&attributes, stack) == 0);
    for (int i = 0; i < 20; i++) CHECK(pthread_create(&t, &attributes, wait_a_little, NULL) == 0);
    pthread_attr_destroy(&attributes);
}

/* A detached thread that never allocated frees while it ends, then its stack is unmapped: it must not leave a thread
   slot that is still written to. Work in between makes the purger make handshakes with all threads. */
static void detached(void) {
    static char *p[2000];
    for (long end = now_ms() + trial_ms(5000); now_ms() < end;) {
        burst(0);
        usleep(30000);
        for (int i = 0; i < 2000; i++) {
            p[i] = malloc(1000 + (size_t)i);
            CHECK(p[i]);
            memset(p[i], 1, 1000);
        }
        for (int i = 0; i < 2000; i++) free(p[i]);
    }
}

/* The same threads must not each leave a heap behind: 6,000 of them would keep 18 MiB. */
static void detached_leave_nothing(void) {
    long before = 0;
    for (int round = 0; round <= 400; round++) {
        if (round == 100) before = status_kib("VmRSS:");
        burst(8 << 20);
        usleep(8000);
    }
    nap(500);
    long after = status_kib("VmRSS:");
    printf("RSS %ld KiB after 2,000 threads, %ld after 8,000\n", before, after);
    CHECK_AT(after - before < 4096, after - before);
}

/* A thread ends without the C library's knowledge, its stack is unmapped, and its number is reused: its thread slot is
   still gone. */
static volatile pid_t number;
static void *end_at_once(void *unused) {
    static void *p[2000];
    for (int i = 0; i < 2000; i++) p[i] = malloc(100);
    for (int i = 0; i < 2000; i++) free(p[i]);
    number = syscall(SYS_gettid);
    syscall(SYS_exit, 0);
    return unused;
}

/* Runs such a thread; returns the file that sets the number of the next process. */
static int end_past_the_library(void) {
    size_t length = 1 << 20;
    char *stack = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    pthread_attr_t attributes;
    pthread_t t;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, length) == 0);
    CHECK(pthread_create(&t, &attributes, end_at_once, NULL) == 0 && pthread_join(t, NULL) == 0);
    CHECK(mprotect(stack, length, PROT_NONE) == 0);
    int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
    if (last < 0) SKIP("numbers of processes cannot be chosen: errno %d", errno);
    return last;
}

/* Gives the number to the next process or thread, unless another one is quicker. */
static void number_again(int last) {
    char text[20];
    int bytes = snprintf(text, sizeof text, "%d", number - 1);
    if (pwrite(last, text, bytes, 0) != bytes) SKIP("numbers of processes cannot be chosen: errno %d", errno);
}

/* Another process has the number. */
static void number_of_another(void) {
    int last = end_past_the_library();
    for (int i = 0; i < 100; i++) {
        number_again(last);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            if (getpid() == number) pause();
            _exit(0);
        }
        CHECK(pid > 0);
        if (pid == number) {
            /* Until the child has registered its locks with the kernel. */
            usleep(100000);
            malloc_trim(0);
            CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
            return;
        }
        CHECK(waitpid(pid, NULL, 0) == pid);
    }
    SKIP("another process was quicker each time");
}

/* A later thread of the same process has the number. */
static void *trim_as_the_number(void *unused) {
    if (syscall(SYS_gettid) != number) return unused;
    malloc_trim(0);
    return (void *)&number;
}
static void number_of_a_later_thread(void) {
    int last = end_past_the_library();
    for (int i = 0; i < 100; i++) {
        pthread_t t;
        void *had_it;
        number_again(last);
        CHECK(pthread_create(&t, NULL, trim_as_the_number, NULL) == 0 && pthread_join(t, &had_it) == 0);
        if (had_it) return;
    }
    SKIP("another process was quicker each time");
}

#ifdef __x86_64__
/* Threads end one after the other, slowly: the trap flag brings SIGTRAP after each instruction of neap's part of the
   end, and its handler sleeps. So forks of another thread begin and end at each place there. Each thread must pass its
   heap on to the next one: two threads have at most two heaps, and one more where a thread begins before the last has
   ended. */
enum { ENDS = 90, SLOW_STEPS = 60, MOST_HEAPS = 3 };
static __thread int end_steps __attribute__((tls_model("initial-exec")));
static atomic_int all_ended;
static pthread_key_t before_neap;

static void slow_step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    int saved = errno;
    usleep(100);
    if (++end_steps == SLOW_STEPS) ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100ll;
    errno = saved;
}
static void steps_on(void *unused) {
    (void)unused;
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}
static void *end_slowly(void *unused) {
    fill_and_free(100, 100);
    CHECK(pthread_setspecific(before_neap, &all_ended) == 0);
    return unused;
}
static void *fork_all_the_time(void *unused) {
    while (!atomic_load(&all_ended)) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) _exit(0);
        CHECK(waitpid(pid, NULL, 0) == pid);
    }
    return unused;
}
static void ends_beside_forks(void) {
    int (*figures)(struct neap_stats *) = (int (*)(struct neap_stats *))dlsym(RTLD_DEFAULT, "neap_stats_get");
    if (!figures) SKIP("another allocator");
    /* Enough for this thread to have a heap, and neap its key. */
    fill_and_free(100, 100);
    struct sigaction trap = {.sa_sigaction = slow_step, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGTRAP, &trap, NULL) == 0);
    /* Destructors run in the order of keys, and neap's key has index 31. */
    do CHECK(pthread_key_create(&before_neap, steps_on) == 0);
    while (before_neap < 30);
    pthread_t forks, t;
    CHECK(pthread_create(&forks, NULL, fork_all_the_time, NULL) == 0);
    for (int i = 0; i < ENDS; i++) CHECK(pthread_create(&t, NULL, end_slowly, NULL) == 0 && pthread_join(t, NULL) == 0);
    atomic_store(&all_ended, 1);
    CHECK(pthread_join(forks, NULL) == 0);
    struct neap_stats s = {.size = sizeof s};
    CHECK(figures(&s) == NEAP_OK);
    printf("%lu heaps for %d threads\n", (unsigned long)s.heaps, ENDS);
    CHECK_AT(s.heaps <= MOST_HEAPS, s.heaps);
}
#else
static void ends_beside_forks(void) { SKIP("the trap flag is x86's"); }
#endif

static const struct test_case cases[] = {
    CASE(detached),
    CASE(detached_leave_nothing),
    CASE(number_of_another),
    CASE(number_of_a_later_thread),
    CASE(ends_beside_forks),
};
TEST_MAIN(cases)
