/* Threads whose first call comes as they end: the C library frees what belongs to a thread after its key destructors. */
#include "trust.h"
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

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

/* A detached thread that never allocated frees while it ends, then its stack is unmapped: it must not leave a
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

/* A thread ends past the C library, its stack goes, and its number comes again: the seat is gone all the same. */
static volatile pid_t number;
static void *end_at_once(void *unused) {
    static void *p[2000];
    for (int i = 0; i < 2000; i++) p[i] = malloc(100);
    for (int i = 0; i < 2000; i++) free(p[i]);
    number = syscall(SYS_gettid);
    syscall(SYS_exit, 0);
    return unused;
}

/* Runs such a thread; returns what chooses the numbers of the next ones. */
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

/* The next process or thread gets the number, unless another one is quicker. */
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
            /* Until the child has told the kernel of its locks. */
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

static const struct test_case cases[] = {
    CASE(detached),
    CASE(detached_leave_nothing),
    CASE(number_of_another),
    CASE(number_of_a_later_thread),
};
TEST_MAIN(cases)
