/* Programs that set an action of SIGSEGV of their own, before guards start (BEFORE selects it) or after. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

static sigjmp_buf before_out;
static volatile int before_calls, before_masked, before_other_stack, before_code;
static void *volatile before_address;
static char stack[64 << 10];

static void note(siginfo_t *info) {
    sigset_t now;
    int here;
    before_calls++;
    sigprocmask(SIG_BLOCK, NULL, &now);
    before_masked = sigismember(&now, SIGUSR1) + 2 * sigismember(&now, SIGSEGV);
    before_other_stack = (char *)&here >= stack && (char *)&here < stack + sizeof stack;
    if (info) before_address = info->si_addr, before_code = info->si_code;
}
static void leaves(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    note(info);
    siglongjmp(before_out, 1);
}
static void returns(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    note(info);
    mprotect((void *)((uintptr_t)info->si_addr & ~(uintptr_t)4095), 4096, PROT_READ | PROT_WRITE);
}
static void plain(int signal) {
    note(NULL);
    CHECK(signal == SIGSEGV);
    siglongjmp(before_out, 1);
}
/* With neap linked into the program, this runs before it. (libneap.so runs before everything else.) */
__attribute__((constructor(101))) static void start(void) {
    const char *which = getenv("BEFORE");
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {0};
    sigaddset(&action.sa_mask, SIGUSR1);
    if (!which) return;
    sigaltstack(&other, NULL);
    if (!strcmp(which, "leaves")) action.sa_sigaction = leaves, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (!strcmp(which, "returns")) action.sa_sigaction = returns, action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (!strcmp(which, "once")) action.sa_sigaction = leaves, action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    if (!strcmp(which, "plain")) action.sa_handler = plain;
    if (!strcmp(which, "ignores")) action.sa_handler = SIG_IGN;
    sigaction(SIGSEGV, &action, NULL);
}
static char *own(void) {
    char *p = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}
static char *volatile freed;
/* An error on a guarded block: prints a report with guards=report. */
static void error(void) {
    freed = malloc(100);
    free(freed);
    freed[5] = 1;
}
/* Faults of the program's own reach its handler as if the kernel called it; errors on guarded blocks do not. */
static void handler_leaves(void) {
    char *volatile p = own();
    for (volatile int i = 0; i < 3; i++) {
        if (!sigsetjmp(before_out, 1)) { p[i] = 1; CHECK(0); }
        CHECK(before_calls == i + 1 && before_address == p + i && before_code == SEGV_ACCERR);
        CHECK_AT(before_masked == 3 && before_other_stack, before_masked);
        error();
        CHECK(before_calls == i + 1);
    }
    if (!sigsetjmp(before_out, 1)) { raise(SIGSEGV); CHECK(0); }
    CHECK(before_calls == 4 && before_code == SI_TKILL);
}
static void handler_returns(void) {
    char *volatile p = own();
    p[7] = 1;
    CHECK(before_calls == 1 && before_address == p + 7 && before_masked == 1 && !before_other_stack);
    error();
    CHECK(before_calls == 1);
    p[4096] = 1;
    CHECK(before_calls == 2);
}
static void handler_plain(void) {
    char *volatile p = own();
    for (volatile int i = 0; i < 3; i++) {
        if (!sigsetjmp(before_out, 1)) { p[i] = 1; CHECK(0); }
        CHECK(before_calls == i + 1 && before_masked == 3);
        error();
    }
}
/* SA_RESETHAND: the second fault ends the process, whatever guards handled in between. */
static void handler_once(void) {
    char *volatile p = own();
    error();
    if (!sigsetjmp(before_out, 1)) { p[0] = 1; CHECK(0); }
    CHECK(before_calls == 1);
    struct sigaction now;
    CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == SIG_DFL);
}
/* A signal that another process sends is ignored, a fault is not. */
static void ignored(void) {
    CHECK(!kill(getpid(), SIGSEGV));
    CHECK(!raise(SIGSEGV));
    error();
    CHECK(!raise(SIGSEGV));
    dprintf(1, "ignored\n");
    *(volatile char *)own() = 1;
}
static void fault(void) { *(volatile char *)own() = 1; }
static void null(void) { *(volatile char *)0x10 = 1; }
static void noncanonical(void) { *(volatile char *)0x8000000000000123 = 1; }
static void raised(void) { raise(SIGSEGV); }
static void sent(void) { kill(getpid(), SIGSEGV), pause(); }
static __attribute__((noinline)) int deep(volatile int n) {
    volatile char room[4096];
    room[n % 4096] = 1;
    return deep(n + 1) + room[n % 4096];
}
static void overflow(void) { deep(0); }

static sigjmp_buf out;
static volatile int calls;
static void *volatile address;
static struct sigaction before;
static void catches(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    calls++, address = info->si_addr;
    siglongjmp(out, 1);
}
static void passes_on(int signal, siginfo_t *info, void *context) {
    calls++;
    before.sa_sigaction(signal, info, context);
}
/* A later action replaces neap's: the program handles the fault. */
static void later_handler(void) {
    struct sigaction action = {.sa_sigaction = catches, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, NULL));
    if (!sigsetjmp(out, 1)) { error(); CHECK(0); }
    CHECK(calls == 1 && address == freed + 5);
    char *p = malloc(50);
    CHECK(p);
    free(p);
}
/* An action that passes on to the one before it, as runtimes do, calls neap's. */
static void later_handler_that_passes_on(void) {
    struct sigaction action = {.sa_sigaction = passes_on, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, &before));
    error();
    CHECK(calls == 1);
}
static void blocked(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    sigprocmask(SIG_BLOCK, &set, NULL);
    error();
}

static const struct test_case cases[] = {
    CASE(handler_leaves), CASE(handler_returns), CASE(handler_plain), CASE(handler_once), CASE(ignored), CASE(fault),
    CASE(null), CASE(noncanonical), CASE(raised), CASE(sent), CASE(overflow), CASE(later_handler),
    CASE(later_handler_that_passes_on), CASE(blocked),
};
TEST_MAIN(cases)
