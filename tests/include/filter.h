/* Filters of system calls, as containers and sandboxes set them. */
#ifndef NEAP_TESTS_FILTER_H
#define NEAP_TESTS_FILTER_H

#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define FILTER_NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
/* `verdict` for the call `number`; the others go on to the next line. */
#define FILTER_CALL(number, verdict) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, verdict)
#define FILTER_ALLOW(name) FILTER_CALL(__NR_##name, SECCOMP_RET_ALLOW)

/* The usual calls of ordinary programs; any other call gets the verdict `otherwise`. `naps`: sleeping is permitted too.
   */
static inline struct sock_fprog *only_usual(unsigned otherwise, int naps) {
    static struct sock_filter code[] = {
        FILTER_NUMBER,
        FILTER_ALLOW(read), FILTER_ALLOW(write), FILTER_ALLOW(close), FILTER_ALLOW(exit), FILTER_ALLOW(exit_group),
        FILTER_ALLOW(brk), FILTER_ALLOW(mmap), FILTER_ALLOW(munmap), FILTER_ALLOW(mremap), FILTER_ALLOW(mprotect),
        FILTER_ALLOW(madvise), FILTER_ALLOW(futex), FILTER_ALLOW(clock_gettime), FILTER_ALLOW(getrandom),
        FILTER_ALLOW(getpid), FILTER_ALLOW(rt_sigprocmask), FILTER_ALLOW(rt_sigreturn), FILTER_ALLOW(newfstatat),
        FILTER_ALLOW(fstat), FILTER_ALLOW(sched_yield),
        FILTER_CALL(0, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    static struct sock_fprog program = {sizeof code / sizeof *code, code};
    code[program.len - 3].k = naps ? __NR_clock_nanosleep : __NR_sched_yield;
    code[program.len - 1].k = otherwise;
    return &program;
}

/* All calls are permitted but `number`, which gets the verdict. */
static inline struct sock_fprog *all_but(int number, unsigned verdict) {
    static struct sock_filter code[] = {
        FILTER_NUMBER,
        FILTER_CALL(0, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    static struct sock_fprog program = {sizeof code / sizeof *code, code};
    code[1].k = number;
    code[2].k = verdict;
    return &program;
}

/* None of these calls is permitted: each gets the verdict. */
static inline struct sock_fprog *none_of(const int *numbers, int count, unsigned verdict) {
    enum { MOST = 32 };
    static struct sock_filter code[2 * MOST + 2] = {FILTER_NUMBER};
    static struct sock_fprog program = {0, code};
    CHECK_AT(count <= MOST, count);
    program.len = 1;
    for (int i = 0; i < count; i++) {
        code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)numbers[i], 0, 1);
        code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
    }
    code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    return &program;
}

/* Sets the filter, which then stays in force. */
static inline void filter(struct sock_fprog *program) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)) SKIP("no seccomp filters here: errno %d", errno);
}

#endif
