/* inject SEED RULE... -- PROGRAM...: runs a program whose system calls are delayed or refused by chance, or end it.

   A rule is CALL:PERCENT:WHAT, where WHAT is a number of microseconds (the call is delayed), an error's number with a
   minus (the call fails), or `kill` (the call always ends the process). A filter sends the calls here (seccomp user
   notification, Linux 5.0; letting them through needs 5.5). This costs microseconds a call and does not stop the
   program's other threads, as tracing does; but the program is started under a filter, which an allocator can see. The
   program's exit status is passed on. */
#define MANY 32
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CANNOT = 77, HANDLERS = 6 };

static struct rule {
    int call;
    unsigned percent;
    int error, kills;
    long delay_us;
} rules[MANY];
static int count;
static int listener;
static atomic_ulong seed;
/* The program has started, which it shows by naming itself: the loader's calls do not fail before that. */
static atomic_int started;

static const struct {
    const char *name;
    int number;
} names[] = {
    {"madvise", __NR_madvise},
    {"mmap", __NR_mmap},
    {"mprotect", __NR_mprotect},
    {"munmap", __NR_munmap},
    {"mremap", __NR_mremap},
    {"futex", __NR_futex},
    {"membarrier", __NR_membarrier},
    {"ioctl", __NR_ioctl},
    {"openat", __NR_openat},
    {"clone", __NR_clone},
    {"clock_gettime", __NR_clock_gettime},
    {"prctl", __NR_prctl},
    {"rt_sigprocmask", __NR_rt_sigprocmask},
    {"memfd_create", __NR_memfd_create},
    {"close_range", __NR_close_range},
    {"mincore", __NR_mincore},
    {"userfaultfd", __NR_userfaultfd},
    {"clone3", __NR_clone3},
    {"fallocate", __NR_fallocate},
    {"close", __NR_close},
};

static int parse(char *text) {
    struct rule rule = {0};
    char *percent = strchr(text, ':'), *what = percent ? strchr(percent + 1, ':') : NULL;
    if (!what || count == MANY) return 0;
    *percent++ = *what++ = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, text)) rule.call = names[i].number;
    rule.percent = (unsigned)atoi(percent);
    long value = atol(what);
    rule.kills = !strcmp(what, "kill");
    if (value < 0)
        rule.error = (int)-value;
    else
        rule.delay_us = value;
    rules[count++] = rule;
    return rule.call != 0;
}

static unsigned draw(void) {
    uint64_t x = atomic_fetch_add(&seed, 0x9E3779B97F4A7C15ull);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (unsigned)((x ^ (x >> 31)) >> 33);
}

/* Answers one call after the other; several threads do, so that a delay holds up one call only. */
static void *answer(void *unused) {
    for (;;) {
        struct seccomp_notif asked;
        struct seccomp_notif_resp reply;
        memset(&asked, 0, sizeof asked);
        memset(&reply, 0, sizeof reply);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) {
            if (errno == EINTR || errno == ENOENT) continue;
            return unused;
        }
        reply.id = asked.id;
        reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        if (asked.data.nr == __NR_prctl && asked.data.args[0] == PR_SET_NAME) atomic_store(&started, 1);
        for (int i = 0; i < count; i++) {
            if (rules[i].error && !atomic_load(&started)) continue;
            /* Only a wait may fail: a failed wake-up would be lost for any lock. */
            unsigned operation = (unsigned)asked.data.args[1] & FUTEX_CMD_MASK;
            int wakes = asked.data.nr == __NR_futex && operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET;
            if (rules[i].error && wakes) continue;
            if (rules[i].call != asked.data.nr || draw() % 100 >= rules[i].percent) continue;
            if (rules[i].error) {
                reply.flags = 0;
                reply.error = -rules[i].error;
            } else {
                struct timespec late = {rules[i].delay_us / 1000000, rules[i].delay_us % 1000000 * 1000};
                nanosleep(&late, NULL);
            }
            break;
        }
        /* ENOENT: a signal interrupted the call, or the caller is gone. */
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
    }
}

/* Sets the filter on this process, which is about to execute the program; returns the listener. */
static int listen_to_self(void) {
    struct sock_filter code[MANY * 2 + 4];
    unsigned short n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_prctl, 0, 1);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    for (int i = 0; i < count; i++) {
        unsigned verdict = rules[i].kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_USER_NOTIF;
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)rules[i].call, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
}

/* Passes one descriptor over a socket. */
static int pass(int socket, int file) {
    char byte = 0, space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (file >= 0) {
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &file, sizeof file);
        return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
    }
    if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) return -1;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    return file;
}

int main(int argc, char **argv) {
    int ends[2], at = 2, status;
    if (argc < 4) return 2;
    atomic_store(&seed, strtoull(argv[1], NULL, 0));
    for (; at < argc && strcmp(argv[at], "--"); at++)
        if (!parse(argv[at])) return 2;
    if (at + 1 >= argc || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return 2;
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        int file = listen_to_self();
        if (file < 0 || pass(ends[1], file)) _exit(CANNOT);
        close(file);
        const char *library = getenv("TORTURE_LIBRARY");
        if (library) setenv("LD_PRELOAD", library, 1);
        execv(argv[at + 1], argv + at + 1);
        _exit(CANNOT);
    }
    close(ends[1]);
    listener = pass(ends[0], -1);
    for (int i = 0; i < HANDLERS && listener >= 0; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, answer, NULL)) return 2;
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 2;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WEXITSTATUS(status);
}
