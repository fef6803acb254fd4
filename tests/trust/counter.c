/* Programs without the time-stamp counter: reading it is a SIGSEGV, and the kernel's code for most clocks reads it. */
#include "trust.h"
#include <linux/seccomp.h>
#include <sys/syscall.h>

/* Missing under another allocator. */
extern int neap_profile_start(size_t interval) __attribute__((weak));

/* Blocks of all kinds, enough to start a helper, which waits by a clock. */
static void work(void) {
    for (int round = 0; round < 3; round++) {
        fill_and_free(2000, 1000);
        fill_and_free(100, 100000);
        fill_and_free(16, 3 << 20);
        nap(600);
    }
}

/* prctl(PR_SET_TSC) disables the counter for this thread, and for those that it starts. */
static void taken_by_prctl(void) {
    if (neap_profile_start) neap_profile_start(4096);
    CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
    work();
}

/* Strict mode disables it too, and permits four system calls: read, write, exit and sigreturn. */
static void taken_by_the_strict_mode(void) {
    if (neap_profile_start) neap_profile_start(4096);
    pid_t child = fork();
    if (child == 0) {
        fill_and_free(1000, 1000);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        for (int i = 0; i < 10; i++) fill_and_free(500, 1000);
        syscall(SYS_exit, 7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(WIFEXITED(status) && WEXITSTATUS(status) == 7, status);
}

static const struct test_case cases[] = {CASE(taken_by_prctl), CASE(taken_by_the_strict_mode)};
TEST_MAIN(cases)
