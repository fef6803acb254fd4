/* Changes that nothing undoes, for the actor `changes`: each is made by a child of fork, which works on afterwards. */
#include "changes.h"
#include <linux/landlock.h>
#include <sys/personality.h>
#include <sys/stat.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

/* A user and group without any rights, and how long a helper may have the rights of the old ones: 100 ms, and more on a
   busy machine. */
enum { NOBODY = 65534, RIGHTS_MS = 1000 };

static int is_root(void) { return geteuid() == 0; }

/* One thread has given up its capabilities, and others have not: then setresuid fails in some threads, for which the C
   library ends the process. */
static int rights_differ;

/* ---- Locking */

/* Blocks of all kinds; whether each is locked, as they all have to be. */
static void check_locked(int expected, const char *when) {
    static const size_t of_kinds[] = {200, 5000, 30000, 100000, 1 << 20, 20 << 20};
    enum { KINDS = sizeof of_kinds / sizeof *of_kinds };
    unsigned char *p[KINDS];
    for (int i = 0; i < KINDS; i++)
        if ((p[i] = malloc(of_kinds[i]))) memset(p[i], 1, of_kinds[i]);
    for (int i = 0; i < KINDS; i++)
        if (p[i] && has_flag(p[i] + of_kinds[i] / 2, " lo") == !expected)
            fail("LOCKED: a block of %zu bytes that was made %s is%s locked", of_kinds[i], when, expected ? " not" : "");
    for (int i = 0; i < KINDS; i++) free(p[i]);
}

/* MCL_FUTURE alone leaves what is mapped already as it is. A block that is longer than all that is free is new. */
static void check_new_locked(void) {
    enum { LONG = 160 << 20 };
    unsigned char *p = malloc(LONG);
    if (p && !has_flag(p + LONG / 2, " lo")) fail("LOCKED: new memory after mlockall is not");
    free(p);
}

static void lock_all(uint64_t *seed, struct lives_on *it) {
    static const int flags[] = {MCL_CURRENT, MCL_FUTURE, MCL_CURRENT | MCL_FUTURE, MCL_FUTURE | 4 /* MCL_ONFAULT */, MCL_CURRENT | 4, MCL_CURRENT | MCL_FUTURE | 4};
    int chosen = flags[below(seed, 6)];
    if (mlockall(chosen)) return;
    progress(it->slot);
    int both = MCL_CURRENT | MCL_FUTURE, is_neap = neap_version && !calls_fail;
    if ((chosen & both) == both && is_neap) check_locked(1, "after mlockall");
    if ((chosen & both) == MCL_FUTURE && is_neap && is_alone) check_new_locked();
    leave_garbage(seed);
    steps(seed, 200);
    progress(it->slot);
    check_zeroed(seed);
    if (one_in(seed, 3)) {
        child_keeps = 1;
        return;
    }
    munlockall();
    if (neap_version && !calls_fail) check_locked(0, "after munlockall");
}

/* An ordinary user may lock what the process has: addresses that are only reserved do not count. */
static void lock_all_as_user(uint64_t *seed, struct lives_on *it) {
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    int chosen = MCL_CURRENT | (one_in(seed, 2) ? MCL_FUTURE : 0) | 4, first = one_in(seed, 2);
    /* Root without CAP_SYS_RESOURCE cannot raise a limit: the amount that the system allows may be too small here. */
    int has_room = setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
    if (first && mlockall(chosen)) return;
    if (rights_differ || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)) return;
    progress(it->slot);
    if (neap_version && has_room && is_alone && !calls_fail) {
        if (!first && mlockall(chosen)) fail("LOCKED: mlockall as a user with a limit of 1 GiB, errno %d", errno);
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) fail("LOCKED: no mapping of an OS page after mlockall and a change of user, errno %d", errno);
        munmap(page, 4096);
    }
    steps(seed, 100);
    child_keeps = 1;
}

/* ---- Limits */

static long field(int number) {
    char text[200];
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = 0;
    char *at = text;
    while (number-- && (at = strchr(at, ' '))) at++;
    return at ? atol(at) * 4096 : 0;
}

/* Lowers a limit to `most`, works, and raises it again or not. */
static void under_limit(uint64_t *seed, struct lives_on *it, int what, rlim_t most) {
    struct rlimit old, low;
    if (getrlimit(what, &old)) return;
    low = old;
    if (most < low.rlim_cur) low.rlim_cur = most;
    if (setrlimit(what, &low)) return;
    for (int i = 0; i < 4; i++, progress(it->slot)) {
        leave_garbage(seed);
        steps(seed, 50);
        check_zeroed(seed);
    }
    if (one_in(seed, 2)) setrlimit(what, &old);
}
static void limit_addresses(uint64_t *seed, struct lives_on *it) {
    child_keeps = 1;
    under_limit(seed, it, RLIMIT_AS, (rlim_t)field(0) + (below(seed, 64) << 20));
}
static void limit_data(uint64_t *seed, struct lives_on *it) {
    child_keeps = 1;
    under_limit(seed, it, RLIMIT_DATA, (rlim_t)field(5) + (below(seed, 64) << 20));
}
static void limit_locked(uint64_t *seed, struct lives_on *it) { under_limit(seed, it, RLIMIT_MEMLOCK, below(seed, 2) << 16); }
static void limit_files(uint64_t *seed, struct lives_on *it) { under_limit(seed, it, RLIMIT_NOFILE, below(seed, 60)); }
static void limit_file_size(uint64_t *seed, struct lives_on *it) { under_limit(seed, it, RLIMIT_FSIZE, below(seed, 2) << 12); }
/* Not below what the first thread's stack has already. */
static void limit_stack(uint64_t *seed, struct lives_on *it) { under_limit(seed, it, RLIMIT_STACK, between(seed, 256 << 10, 1 << 20)); }
static void limit_signals(uint64_t *seed, struct lives_on *it) { under_limit(seed, it, RLIMIT_SIGPENDING, 0); }
static void limit_threads(uint64_t *seed, struct lives_on *it) {
    child_without_helper = 1;
    /* It does not count for root. */
    if (rights_differ || setresuid(NOBODY, NOBODY, NOBODY)) return;
    under_limit(seed, it, RLIMIT_NPROC, below(seed, 2));
}

/* ---- Namespaces and shared tables */

/* With one thread, besides neap's, unshare must not fail because of several. */
static void unshares(struct lives_on *it, int flags) {
    if (unshare(flags) && errno == EINVAL && !it->threads && !calls_fail && (flags & ~CLONE_NEWTIME))
        fail("UNSHARE: %#x is refused to a process of one thread", flags);
}
static void user_namespace(uint64_t *seed, struct lives_on *it) {
    unshares(it, CLONE_NEWUSER | (one_in(seed, 2) ? CLONE_NEWNS : 0));
}
static void mount_namespace(uint64_t *seed, struct lives_on *it) {
    (void)seed;
    unshares(it, CLONE_NEWNS);
}
static void other_namespaces(uint64_t *seed, struct lives_on *it) {
    static const int flags[] = {CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWCGROUP};
    unshares(it, flags[below(seed, 4)]);
}
static void own_tables(uint64_t *seed, struct lives_on *it) {
    static const int flags[] = {CLONE_FILES, CLONE_FS, CLONE_FILES | CLONE_FS, CLONE_SYSVSEM};
    unshares(it, flags[below(seed, 4)]);
    if (!it->threads) unshares(it, CLONE_VM | CLONE_SIGHAND | CLONE_THREAD);
}

/* A child of the child: it works, and gives back what it frees, by its own clock. */
static void work_in_namespace(uint64_t *seed, struct lives_on *it, const char *what) {
    uint64_t its = draw(seed) | 1;
    pid_t child = fork();
    if (child == 0) {
        child_without_helper = child_keeps = 0;
        leave_garbage(&its);
        for (int i = 0; i < 4; i++, progress(it->slot)) {
            steps(&its, 100);
            check_zeroed(&its);
        }
        check_all("in a child in another namespace");
        free_all();
        leave_garbage(&its);
        check_child_resident(it->slot);
        _exit(0);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) nap_us(1000);
    if (child > 0 && status) fail("a child in another %s ended with status %#x", what, status);
}

/* No thread can be started from here on, only children. */
static void process_namespace(uint64_t *seed, struct lives_on *it) {
    if (unshare(CLONE_NEWPID)) return;
    child_without_helper = 1;
    work_in_namespace(seed, it, "namespace of processes");
}

/* The clocks of the next children are behind, or ahead. */
static void time_namespace(uint64_t *seed, struct lives_on *it) {
    struct timespec up;
    char text[100];
    if (unshare(CLONE_NEWTIME)) return;
    clock_gettime(CLOCK_BOOTTIME, &up);
    long offset = one_in(seed, 2) ? -(long)(up.tv_sec / 2 + (long)below(seed, (uint64_t)up.tv_sec / 2 + 1)) : (long)below(seed, 100000000);
    int file = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    int n = snprintf(text, sizeof text, "monotonic %ld 0\nboottime %ld 0\n", offset, offset);
    if (file >= 0 && write(file, text, (size_t)n) != n) offset = 0;
    if (file >= 0) close(file);
    leave_garbage(seed);
    work_in_namespace(seed, it, "namespace of time");
}

static void join_namespace(uint64_t *seed, struct lives_on *it) {
    static const struct { const char *path; int kind; } those[] = {
        {"/proc/self/ns/net", CLONE_NEWNET}, {"/proc/self/ns/uts", CLONE_NEWUTS}, {"/proc/self/ns/mnt", CLONE_NEWNS}};
    uint64_t i = below(seed, 3);
    int file = open(those[i].path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (setns(file, those[i].kind) && errno == EINVAL && !it->threads && !calls_fail) fail("SETNS: %s is refused to a process of one thread", those[i].path);
    close(file);
}

/* ---- Rights */

/* Fails where a thread is still root's when it may not be any more. */
static void await_user(struct lives_on *it) {
    long end = now_ms() + RIGHTS_MS;
    for (int left; it->folder >= 0 && neap_version && !calls_fail && (left = threads_with_user(it->folder, 0)); nap_us(5000))
        if (now_ms() > end) fail("RIGHTS: %d threads are root's %d ms after setresuid", left, RIGHTS_MS);
}

static void user(uint64_t *seed, struct lives_on *it) {
    if (!is_root() || rights_differ) return;
    leave_garbage(seed);
    if (one_in(seed, 2)) setgroups(0, NULL);
    if (one_in(seed, 2)) (void)setresgid(NOBODY, NOBODY, NOBODY);
    if (setresuid(NOBODY, NOBODY, NOBODY)) return;
    await_user(it);
}

/* By the bare system call, in a process of one thread: neap learns of it a little later. */
static void user_by_call(uint64_t *seed, struct lives_on *it) {
    if (!is_root() || it->threads) return;
    leave_garbage(seed);
    if (syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY)) return;
    await_user(it);
}

static void capabilities(uint64_t *seed, struct lives_on *it) {
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } none[2];
    memset(none, 0, sizeof none);
    leave_garbage(seed);
    rights_differ |= syscall(SYS_capset, &head, none) == 0 && it->threads;
    progress(it->slot);
}

static void dumpable(uint64_t *seed, struct lives_on *it) {
    if (one_in(seed, 2) && !rights_differ) (void)setresuid(NOBODY, NOBODY, NOBODY);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    progress(it->slot);
}

/* Of these none concerns an allocator. */
static void other_rights(uint64_t *seed, struct lives_on *it) {
    switch (below(seed, 7)) {
    case 0: prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); break;
    case 1: prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); break;
    case 2: prctl(PR_SET_SECUREBITS, 1, 0, 0, 0); break;
    case 3: prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); break;
    case 4: prctl(57 /* PR_SET_IO_FLUSHER */, 1, 0, 0, 0); break;
    case 5: prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); break;
    default: prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
    }
    progress(it->slot);
}

static void landlock(uint64_t *seed, struct lives_on *it) {
    struct landlock_ruleset_attr rules = {.handled_access_fs = 0x1fff};
    int file = (int)syscall(444 /* landlock_create_ruleset */, &rules, sizeof rules, 0);
    if (file < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return;
    syscall(446 /* landlock_restrict_self */, file, 0);
    close(file);
    leave_garbage(seed);
    progress(it->slot);
}

/* ---- Files and folders */

/* A current folder that does not exist any more. */
static void folder(uint64_t *seed, struct lives_on *it) {
    char path[] = "/tmp/torture-XXXXXX";
    if (!mkdtemp(path)) return;
    (void)chdir(path);
    rmdir(path);
    leave_garbage(seed);
    progress(it->slot);
}
static void root(uint64_t *seed, struct lives_on *it) {
    char path[] = "/tmp/torture-XXXXXX";
    if (!is_root() || !mkdtemp(path)) return;
    int changed = chdir(path) == 0;
    /* Removed while it is the root: nothing can be opened there. */
    rmdir(path);
    if (changed) (void)chroot(".");
    leave_garbage(seed);
    progress(it->slot);
}

/* All files but the one for `fail`. */
static void close_files(uint64_t *seed, struct lives_on *it) {
    int kept = fcntl(report_file, F_DUPFD_CLOEXEC, 500);
    if (kept < 0) return;
    report_file = kept;
    close_range(one_in(seed, 2) ? 0 : 3, (unsigned)kept - 1, 0);
    close_range((unsigned)kept + 1, ~0u, 0);
    it->folder = -1;
    if (one_in(seed, 2)) for (int i = 0; i < 60; i++) (void)open("/dev/null", O_RDWR);
}
static void standard_streams(uint64_t *seed, struct lives_on *it) {
    int kept = fcntl(report_file, F_DUPFD_CLOEXEC, 500);
    if (kept < 0) return;
    report_file = kept;
    for (int i = 0; i < 3; i++) close(i);
    if (one_in(seed, 2)) for (int i = 0; i < 3; i++) (void)open("/dev/null", O_RDWR);
    progress(it->slot);
}
static void file_mask(uint64_t *seed, struct lives_on *it) {
    umask(0777);
    leave_garbage(seed);
    progress(it->slot);
}

/* ---- How the kernel treats the process */

static void execution_domain(uint64_t *seed, struct lives_on *it) {
    /* With PR_SET_MDWE the kernel then refuses all new memory, the C library's too. */
    if (prctl(66 /* PR_GET_MDWE */, 0, 0, 0, 0) > 0) return;
    static const unsigned long flags[] = {ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC, ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC, ADDR_COMPAT_LAYOUT, MMAP_PAGE_ZERO};
    personality(flags[below(seed, 5)]);
    leave_garbage(seed);
    progress(it->slot);
}
static void huge_pages_off(uint64_t *seed, struct lives_on *it) {
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    leave_garbage(seed);
    if (one_in(seed, 2)) prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    progress(it->slot);
}
static void no_new_code(uint64_t *seed, struct lives_on *it) {
    if (personality(0xffffffff) & READ_IMPLIES_EXEC) return;
    prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0);
    leave_garbage(seed);
    progress(it->slot);
}
static void merged_memory(uint64_t *seed, struct lives_on *it) {
    prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0);
    leave_garbage(seed);
    if (one_in(seed, 2)) prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);
    progress(it->slot);
}
/* In a process of one thread, because the C library reads clocks in others. */
static void no_counter(uint64_t *seed, struct lives_on *it) {
    if (it->threads) return;
    leave_garbage(seed);
    uint64_t its = draw(seed) | 1;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
        for (int i = 0; i < 10; i++) {
            leave_garbage(&its);
            steps(&its, 30);
            nap_us(20000);
        }
        _exit(0);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) nap_us(1000);
    if (child > 0 && status) fail("a child without the processor's counter ended with status %#x", status);
    progress(it->slot);
}

/* A thread with a deadline may make no thread, so there may be no helper. */
static void deadline(uint64_t *seed, struct lives_on *it) {
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } wanted = {
        .size = 48, .policy = 6, .runtime = 4000000, .deadline = 10000000, .period = 10000000};
    if (syscall(SYS_sched_setattr, 0, &wanted, 0)) return;
    child_without_helper = 1;
    leave_garbage(seed);
    progress(it->slot);
}

/* Stopped and continued again and again by a child of its own. */
static void stopped(uint64_t *seed, struct lives_on *it) {
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        for (int i = 0; i < 15; i++) {
            kill(self, SIGSTOP);
            nap_us(3000);
            kill(self, SIGCONT);
            nap_us(3000);
        }
        _exit(0);
    }
    for (int status = 0; child > 0 && waitpid(child, &status, WNOHANG) == 0; progress(it->slot)) {
        leave_garbage(seed);
        steps(seed, 30);
    }
}

const struct change changes_of_children[] = {
    {"lock_all", 1, lock_all},
    {"lock_all_as_user", 1, lock_all_as_user},
    {"limit_addresses", 1, limit_addresses},
    {"limit_data", 1, limit_data},
    {"limit_locked", 1, limit_locked},
    {"limit_files", 1, limit_files},
    {"limit_file_size", 1, limit_file_size},
    {"limit_stack", 1, limit_stack},
    {"limit_signals", 1, limit_signals},
    {"limit_threads", 1, limit_threads},
    {"user_namespace", 1, user_namespace},
    {"mount_namespace", 1, mount_namespace},
    {"other_namespaces", 1, other_namespaces},
    {"own_tables", 1, own_tables},
    {"process_namespace", 1, process_namespace},
    {"time_namespace", 1, time_namespace},
    {"join_namespace", 1, join_namespace},
    {"user", 1, user},
    {"user_by_call", 1, user_by_call},
    {"capabilities", 1, capabilities},
    {"dumpable", 1, dumpable},
    {"other_rights", 1, other_rights},
    {"landlock", 1, landlock},
    {"folder", 1, folder},
    {"root", 1, root},
    {"close_files", 1, close_files},
    {"standard_streams", 1, standard_streams},
    {"file_mask", 1, file_mask},
    {"execution_domain", 1, execution_domain},
    {"huge_pages_off", 1, huge_pages_off},
    {"no_new_code", 1, no_new_code},
    {"merged_memory", 1, merged_memory},
    {"no_counter", 1, no_counter},
    {"deadline", 1, deadline},
    {"stopped", 1, stopped},
    {NULL, 0, NULL},
};
