/* Handlers that do not return normally to what they interrupted. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

static void allocate_much(void) {
    char *p[200];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 200; i++) CHECK(p[i] = malloc((size_t)i * (i % 20 == 0 ? 3000 : 7)));
        for (int i = 0; i < 200; i++) memset(p[i], i, (size_t)i * 7);
        for (int i = 0; i < 200; i += 3) CHECK(p[i] = realloc(p[i], (size_t)i * 11 + 1));
        for (int i = 0; i < 200; i++) free(p[i]);
    }
}

static void report(int signal) {
    (void)signal;
    allocate_much();
    dprintf(1, "reported\nok\n");
    _exit(0);
}

/* neap ends the process, and a crash reporter allocates in the handler of SIGABRT. */
static void abort_handler(void) {
    signal(SIGABRT, report);
    char *volatile p = malloc(100);
    free(p);
    free(p);
    CHECK(!"a second free is seen");
}

/* The same where neap detected the misuse late, in the middle of a flush of a cache. */
static void abort_handler_in_flush(void) {
    signal(SIGABRT, report);
    static char *p[4000];
    for (int i = 0; i < 4000; i++) p[i] = malloc(64);
    for (int i = 0; i < 3000; i++) free(p[i]);
    /* Written after free. */
    for (int i = 2000; i < 3000; i++) memset(p[i], 1, 16);
    for (int i = 3000; i < 4000; i++) free(p[i]);
    for (int i = 0; i < 4000; i++) p[i] = malloc(64);
    CHECK(!"a write after free is seen");
}

static sigjmp_buf back;
static volatile sig_atomic_t jumps, in_call;

static void jump(int signal) {
    (void)signal;
    if (in_call && jumps < 300) {
        jumps++;
        siglongjmp(back, 1);
    }
}

/* A handler that jumps out of malloc leaves a call unfinished (POSIX permits no call of malloc afterwards). The thread
 * must still go on. */
static void jump_out(void) {
    struct sigaction action = {.sa_handler = jump};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(200, 200);
    char *volatile p = NULL;
    volatile int rounds = 0;
    sigsetjmp(back, 1);
    in_call = 1;
    while (jumps < 300 && rounds++ < 3000000) {
        p = malloc(40);
        memset(p, 1, 40);
        free(p);
    }
    in_call = 0;
    ualarm(0, 0);
    allocate_much();
    dprintf(1, "%d jumps\n", (int)jumps);
}

static const struct test_case cases[] = {CASE(abort_handler), CASE(abort_handler_in_flush), CASE(jump_out)};
TEST_MAIN(cases)
