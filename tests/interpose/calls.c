/* A library that defines functions of the system calls that neap defines too, and passes each call on, as tools do that
 * redirect or record them (torsocks, uid_wrapper, darshan). Each writes its name. With -DPROGRAM: a program that calls
 * each of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef PROGRAM
#include "check.h"

#define LEN ((size_t)1 << 16)
static int child(void *stack) { return stack ? 7 : 8; }

int main(void) {
    struct rlimit limit;
    struct rlimit64 limit64;
    CHECK(unshare(0) == 0);
    errno = 0;
    CHECK(setns(-1, 0) == -1 && errno == EBADF);
    CHECK(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) >= 0);
    CHECK(prlimit(0, RLIMIT_CORE, NULL, &limit) == 0 && prlimit64(0, RLIMIT_CORE, NULL, &limit64) == 0);
    CHECK(setrlimit(RLIMIT_CORE, &limit) == 0 && setrlimit64(RLIMIT_CORE, &limit64) == 0);
    char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *q = mmap64(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && q != MAP_FAILED);
    CHECK(mmap(NULL, 0, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    memset(p, 1, LEN);
    CHECK(mlock(p, 1) == 0 && mlock2(p, 1, 0) == 0 && munlock(p, LEN) == 0);
    CHECK(mlockall(64) == -1 && errno == EINVAL && ioctl(-1, FIONBIO, p) == -1 && errno == EBADF);
    CHECK(madvise(p, LEN, MADV_DONTNEED) == 0 && p[0] == 0 && p[LEN - 1] == 0);
    CHECK(pkey_mprotect(p, LEN, PROT_READ, -1) == 0 && mprotect(p, LEN, PROT_READ | PROT_WRITE) == 0);
    p = mremap(p, LEN, 2 * LEN, MREMAP_MAYMOVE);
    CHECK(p != MAP_FAILED && munmap(p, 2 * LEN) == 0);
    int status, pid = clone(child, q + LEN, SIGCHLD, q);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(syscall(SYS_getpid) == getpid());
    errno = 0;
    CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
    return 0;
}
#else
#define SAY_AND_CALL(name)                                           \
    static const char line[] = #name "\n";                            \
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) abort();     \
    return ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define PASS(type, name, parameters, ...) \
    type name parameters { SAY_AND_CALL(name)(__VA_ARGS__); }
typedef long word;
typedef __rlimit_resource_t which;
PASS(int, unshare, (int flags), flags)
PASS(int, setns, (int file, int kind), file, kind)
PASS(int, setrlimit, (which r, const struct rlimit *to), r, to)
PASS(int, setrlimit64, (which r, const struct rlimit64 *to), r, to)
PASS(int, prlimit, (pid_t pid, which r, const struct rlimit *to, struct rlimit *old), pid, r, to, old)
PASS(int, prlimit64, (pid_t pid, which r, const struct rlimit64 *to, struct rlimit64 *old), pid, r, to, old)
PASS(void *, mmap, (void *p, size_t len, int prot, int flags, int file, off_t at), p, len, prot, flags, file, at)
PASS(void *, mmap64, (void *p, size_t len, int prot, int flags, int file, off64_t at), p, len, prot, flags, file, at)
PASS(int, munmap, (void *p, size_t len), p, len)
PASS(int, mprotect, (void *p, size_t len, int prot), p, len, prot)
PASS(int, pkey_mprotect, (void *p, size_t len, int prot, int key), p, len, prot, key)
PASS(int, madvise, (void *p, size_t len, int advice), p, len, advice)
PASS(int, mlock, (const void *p, size_t len), p, len)
PASS(int, mlockall, (int flags), flags)
PASS(int, mlock2, (const void *p, size_t len, unsigned flags), p, len, flags)
/* These take any number of arguments, each of which is one word. */
#define PASS_ALL(type, name, parameters, last, ...)     \
    type name parameters {                              \
        word more[6];                                   \
        va_list list;                                   \
        va_start(list, last);                           \
        for (int i = 0; i < 6; i++) more[i] = va_arg(list, word); \
        va_end(list);                                   \
        SAY_AND_CALL(name)(__VA_ARGS__);                \
    }
#define MORE more[0], more[1], more[2], more[3], more[4]
PASS_ALL(int, ioctl, (int file, unsigned long request, ...), request, file, request, more[0])
PASS_ALL(int, prctl, (int option, ...), option, option, MORE)
PASS_ALL(void *, mremap, (void *p, size_t len, size_t to, int flags, ...), flags, p, len, to, flags, more[0])
PASS_ALL(int, clone, (int (*f)(void *), void *stack, int flags, void *arg, ...), arg, f, stack, flags, arg, MORE)
PASS_ALL(word, syscall, (word number, ...), number, number, MORE, more[5])
#endif
