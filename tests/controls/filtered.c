/* Controls in a process whose filter kills it for all but the usual calls. */
#include "check.h"
#include "purge.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static void kill_others(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(close), ALLOW(exit), ALLOW(exit_group), ALLOW(brk), ALLOW(mmap),
        ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect), ALLOW(madvise), ALLOW(futex), ALLOW(clock_gettime),
        ALLOW(getrandom), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(newfstatat), ALLOW(fstat),
        ALLOW(sched_yield), ALLOW(clock_nanosleep),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) SKIP("no seccomp filters here: errno %d", errno);
}

static void controls(void) {
    garbage_mixed();
    CHECK(malloc_trim(0) == 1);
    struct mallinfo2 m = mallinfo2();
    CHECK(m.arena == m.uordblks + m.fordblks);
    static char text[60000];
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK(f && malloc_info(0, f) == 0 && fclose(f) == 0 && strstr(text, "</malloc>"));
    mallopt(M_PERTURB, 0xa5);
    unsigned char *p = malloc(1000);
    CHECK(p && p[999] == 0x5a);
    free(p);
    mallopt(M_PERTURB, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    malloc_stats();
    garbage_mixed();
    malloc_trim(1 << 20);
}
static void killed(void) {
    controls();
    kill_others();
    controls();
}
static const struct test_case CASES[] = {CASE(killed)};
TEST_MAIN(CASES)
