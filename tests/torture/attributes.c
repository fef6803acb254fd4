/* Changes of the calling thread and of its blocks, for the actor `changes`. The thread ends after its change, so the
   process is as before. */
#include "changes.h"
#include <dlfcn.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

enum { PAGE = 4096, BLOCKS = 24 };
enum { IOPRIO_IDLE = 3 << 13, IOPRIO_REAL_TIME = 1 << 13 };

/* Work of a thread whose attributes are changed: it frees enough that it may be the one that starts the helper. */
static void work_changed(uint64_t *seed, struct lives_on *it) {
    for (int i = 0; i < 4; i++) {
        leave_garbage(seed);
        steps(seed, 100);
        check_zeroed(seed);
        if (one_in(seed, 3)) nap_us((long)below(seed, 30000));
        progress(it->slot);
    }
    check_helper(it->folder);
}

static void policy(uint64_t *seed, struct lives_on *it) {
    static const int policies[] = {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, SCHED_FIFO, SCHED_RR};
    int chosen = policies[below(seed, 5)];
    struct sched_param parameter = {chosen == SCHED_FIFO || chosen == SCHED_RR ? (int)between(seed, 1, 50) : 0};
    /* Refused to ordinary users where the policy is a real-time one. */
    sched_setscheduler(0, chosen | (one_in(seed, 4) ? SCHED_RESET_ON_FORK : 0), &parameter);
    work_changed(seed, it);
}

static void nice_value(uint64_t *seed, struct lives_on *it) {
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), (int)between(seed, 0, 39) - 20);
    work_changed(seed, it);
}

/* One processor, or all. */
static void affinity(uint64_t *seed, struct lives_on *it) {
    cpu_set_t all, one;
    if (sched_getaffinity(getpid(), sizeof all, &all)) return;
    int skip = (int)below(seed, (uint64_t)CPU_COUNT(&all)), chosen = 0;
    while (!CPU_ISSET(chosen, &all) || skip-- > 0) chosen++;
    CPU_ZERO(&one);
    CPU_SET(chosen, &one);
    sched_setaffinity(0, sizeof one, &one);
    work_changed(seed, it);
}

static void io_priority(uint64_t *seed, struct lives_on *it) {
    syscall(SYS_ioprio_set, 1, 0, one_in(seed, 2) ? IOPRIO_IDLE : IOPRIO_REAL_TIME | 4);
    work_changed(seed, it);
}

/* With a slack of hours a sleep ends when another timer of the processor does: the sleeper of a helper with this slack
   would not tick. */
static void timer_slack(uint64_t *seed, struct lives_on *it) {
    static const unsigned long slacks[] = {1, 1000000, 1000000000, 3600000000000};
    prctl(PR_SET_TIMERSLACK, slacks[below(seed, 4)], 0, 0, 0);
    leave_garbage(seed);
    steps(seed, 100);
    /* This thread naps with its own slack. */
    prctl(PR_SET_TIMERSLACK, 50000, 0, 0, 0);
    work_changed(seed, it);
}

static void memory_policy(uint64_t *seed, struct lives_on *it) {
    unsigned long first = 1;
    static const int modes[] = {MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE};
    syscall(SYS_set_mempolicy, modes[below(seed, 3)], &first, 64);
    work_changed(seed, it);
}

/* By the system call, so of this thread alone. The user owns nothing and may trace nothing. */
static void user_of_thread(uint64_t *seed, struct lives_on *it) {
    syscall(SYS_setresuid, 65534, 65534, 65534);
    work_changed(seed, it);
}

static void capabilities_of_thread(uint64_t *seed, struct lives_on *it) {
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } none[2];
    memset(none, 0, sizeof none);
    syscall(SYS_capset, &head, none);
    work_changed(seed, it);
}

/* A thread without restartable sequences, as in programs that use them for themselves. */
static void restartable_sequences(uint64_t *seed, struct lives_on *it) {
    extern const ptrdiff_t __rseq_offset __attribute__((weak));
    extern const unsigned __rseq_size __attribute__((weak));
    if (&__rseq_offset && &__rseq_size && __rseq_size)
        syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, 32, 1 /* unregister */, 0x53053053);
    work_changed(seed, it);
}

static void name(uint64_t *seed, struct lives_on *it) {
    prctl(PR_SET_NAME, "renamed", 0, 0, 0);
    work_changed(seed, it);
}

/* ---- Blocks that lie under stacks */

static void steps_on_other_stack(int signal) {
    (void)signal;
    in_handler++;
    uint64_t seed = new_seed();
    steps(&seed, 3);
    in_handler--;
}

static void alternate_stack(uint64_t *seed, struct lives_on *it) {
    size_t size = between(seed, 32 << 10, 256 << 10);
    stack_t stack = {.ss_sp = malloc(size), .ss_size = size}, none = {.ss_flags = SS_DISABLE};
    struct sigaction action = {.sa_handler = steps_on_other_stack, .sa_flags = SA_ONSTACK | SA_RESTART};
    if (!stack.ss_sp || sigaltstack(&stack, NULL) || sigaction(SIGUSR2, &action, NULL)) return;
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &mine, NULL);
    for (int i = 0; i < 50; i++) {
        pthread_kill(pthread_self(), SIGUSR2);
        if (i % 10 == 0) steps(seed, 20);
    }
    progress(it->slot);
    pthread_sigmask(SIG_BLOCK, &mine, NULL);
    sigaltstack(&none, NULL);
    free(stack.ss_sp);
}

static void *works_on_block(void *unused) {
    uint64_t seed = new_seed();
    steps(&seed, 50);
    return unused;
}
static void stack_in_block(uint64_t *seed, struct lives_on *it) {
    enum { STACK = 256 << 10 };
    for (int i = 0; i < 5; i++, progress(it->slot)) {
        pthread_t thread;
        pthread_attr_t attributes;
        char *block = malloc(STACK + 2 * PAGE);
        if (!block) return;
        char *guard = (char *)(((uintptr_t)block + PAGE - 1) & -(uintptr_t)PAGE);
        int guarded = mprotect(guard, PAGE, PROT_NONE) == 0;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, guard + PAGE, STACK - PAGE);
        if (pthread_create(&thread, &attributes, works_on_block, NULL) == 0) pthread_join(thread, NULL);
        /* Sometimes the guard stays, and the next owner must not get it. */
        if (guarded && (!neap_version || one_in(seed, 2))) mprotect(guard, PAGE, PROT_READ | PROT_WRITE);
        free(block);
    }
}

/* ---- Blocks whose OS pages the program marks: the next owner must not get the mark */

struct part {
    unsigned char *block, *start;
    size_t size, bytes;
};
static struct part make_part(uint64_t *seed) {
    struct part p = {.size = between(seed, 100000, 2 << 20)};
    if (!(p.block = malloc(p.size))) return p;
    memset(p.block, 0x5a, p.size);
    p.start = (unsigned char *)(((uintptr_t)p.block + PAGE - 1) & -(uintptr_t)PAGE);
    p.bytes = ((size_t)(p.block + p.size - p.start) & -(size_t)PAGE) - PAGE;
    return p;
}

/* The next blocks of this size; `has` says whether one has the mark. */
static void check_next(const struct part *marked, struct lives_on *it, int (*has)(const unsigned char *)) {
    unsigned char *next[BLOCKS];
    int wrong = 0;
    for (int i = 0; i < BLOCKS; i++)
        if ((next[i] = malloc(marked->size))) {
            memset(next[i], 1, marked->size);
            /* Only the block that lies where the marked one was. */
            unsigned char *middle = marked->start + marked->bytes / 2 / PAGE * PAGE;
            if (next[i] <= middle && middle < next[i] + marked->size) wrong |= has(middle) == 1;
        }
    for (int i = 0; i < BLOCKS; i++) free(next[i]);
    progress(it->slot);
    /* Where calls fail, so may the one by which neap maps the block anew. */
    if (wrong && neap_version && !calls_fail && !atomic_load(&filtered)) fail("MARK: the next owner of a block has what its owner did to it: %s", it->name);
}

static int is_bound(const unsigned char *at) {
    int mode = 0;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0, at, 2 /* MPOL_F_ADDR */) == 0 && mode == MPOL_BIND;
}
static void memory_policy_of_block(uint64_t *seed, struct lives_on *it) {
    struct part p = make_part(seed);
    unsigned long first = 1;
    if (!p.block) return;
    if (syscall(SYS_mbind, p.start, p.bytes, MPOL_BIND, &first, 64, 0)) {
        free(p.block);
        return;
    }
    free(p.block);
    check_next(&p, it, is_bound);
}

static int is_not_dumped(const unsigned char *at) { return has_flag(at, " dd"); }
static int is_not_copied(const unsigned char *at) { return has_flag(at, " dc"); }
static int is_wiped(const unsigned char *at) { return has_flag(at, " wf"); }
static int is_locked(const unsigned char *at) { return has_flag(at, " lo"); }
static int is_mergeable(const unsigned char *at) { return has_flag(at, " mg"); }

static void advised(uint64_t *seed, struct lives_on *it, int advice, int (*has)(const unsigned char *)) {
    struct part p = make_part(seed);
    int done = p.block && madvise(p.start, p.bytes, advice) == 0;
    free(p.block);
    if (done) check_next(&p, it, has);
}
static void not_copied(uint64_t *seed, struct lives_on *it) { advised(seed, it, MADV_DONTFORK, is_not_copied); }
static void wiped_in_children(uint64_t *seed, struct lives_on *it) { advised(seed, it, MADV_WIPEONFORK, is_wiped); }
static void not_dumped(uint64_t *seed, struct lives_on *it) { advised(seed, it, MADV_DONTDUMP, is_not_dumped); }
static void mergeable(uint64_t *seed, struct lives_on *it) { advised(seed, it, MADV_MERGEABLE, is_mergeable); }

static void locked_block(uint64_t *seed, struct lives_on *it) {
    struct part p = make_part(seed);
    int done = p.block && (one_in(seed, 2) ? mlock(p.start, p.bytes) : mlock2(p.start, p.bytes, 1 /* MLOCK_ONFAULT */)) == 0;
    free(p.block);
    if (done) check_next(&p, it, is_locked);
}

/* Sealed OS pages cannot be unmapped, moved or protected (Linux 6.10): blocks there only have to stay right. */
static void sealed_block(uint64_t *seed, struct lives_on *it) {
    struct part p = make_part(seed);
    if (!p.block) return;
    syscall(462 /* mseal */, p.start, p.bytes, 0);
    if (one_in(seed, 2)) {
        unsigned char *moved = realloc(p.block, p.size * 3);
        for (size_t i = 0; moved && i < p.size; i++)
            if (moved[i] != 0x5a) fail("WRONG BYTES in a sealed block that was resized, offset %zu", i);
        free(moved ? moved : p.block);
    } else
        free(p.block);
    steps(seed, 50);
    check_zeroed(seed);
    progress(it->slot);
}

/* ---- userfaultfd */

struct server {
    int file;
    atomic_int over;
    atomic_ulong faults;
};
/* Answers each fault with zeros, and allocates meanwhile. */
static void *serves_faults(void *arg) {
    struct server *s = arg;
    static const unsigned char zeros[PAGE] __attribute__((aligned(4096)));
    while (!atomic_load(&s->over)) {
        struct pollfd ready = {s->file, POLLIN, 0};
        struct uffd_msg message;
        if (poll(&ready, 1, 20) <= 0 || read(s->file, &message, sizeof message) != sizeof message) continue;
        free(malloc(2000));
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        atomic_fetch_add(&s->faults, 1);
        uint64_t at = message.arg.pagefault.address & -(uint64_t)PAGE;
        struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)zeros, .len = PAGE};
        struct uffdio_range range = {at, PAGE};
        if (ioctl(s->file, UFFDIO_COPY, &copy)) ioctl(s->file, UFFDIO_WAKE, &range);
    }
    return NULL;
}

/* The program registers a block, and frees it: nothing of the next owner's is served. */
static void served_block(uint64_t *seed, struct lives_on *it) {
    struct server s = {.file = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)};
    struct uffdio_api api = {.api = UFFD_API, .features = one_in(seed, 2) ? UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP : 0};
    pthread_t server;
    if (s.file < 0) return;
    struct part p = make_part(seed);
    struct uffdio_register registered = {.range = {(uintptr_t)p.start, p.bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    /* No thread: nothing is registered, because the faults would wait for ever. */
    if (p.block && ioctl(s.file, UFFDIO_API, &api) == 0 && start_thread(&server, serves_faults, &s, 0, 0, 0)) {
        int done = ioctl(s.file, UFFDIO_REGISTER, &registered) == 0;
        madvise(p.start, p.bytes, MADV_DONTNEED);
        for (size_t i = 0; done && i < p.bytes; i += PAGE)
            if (p.start[i]) fail("WRONG BYTES in a block whose faults the program serves, offset %zu", i);
        progress(it->slot);
        free(p.block);
        p.block = NULL;
        /* What is resident causes no faults. */
        malloc_trim(0);
        unsigned long before = atomic_load(&s.faults);
        for (int i = 0; i < 4; i++) {
            unsigned char *next = calloc(1, p.size);
            for (size_t k = 0; next && k < p.size; k++)
                if (next[k]) fail("NOT ZERO: calloc(%zu) where the program served faults, offset %zu", p.size, k);
            if (next) memset(next, 1, p.size);
            free(next);
        }
        unsigned long after = atomic_load(&s.faults);
        if (done && neap_version && !calls_fail && !atomic_load(&filtered) && after != before)
            fail("MARK: %lu faults of the next owners of a block are served: %s", after - before, it->name);
        atomic_store(&s.over, 1);
        pthread_join(server, NULL);
    }
    free(p.block);
    close(s.file);
}

/* ---- Libraries */

/* A library that contains neap, which is unloaded while its helper lives. */
static void unloaded_allocator(uint64_t *seed, struct lives_on *it) {
    const char *path = getenv("TORTURE_ALLOCATOR");
    for (int i = 0; i < 5 && path; i++, progress(it->slot)) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle) return;
        void (*use)(size_t) = (void (*)(size_t))dlsym(handle, "plugin_use");
        if (use) use(between(seed, 1, 200));
        if (one_in(seed, 2)) nap_us((long)below(seed, 150000));
        dlclose(handle);
        if (one_in(seed, 2)) nap_us((long)below(seed, 150000));
    }
}

const struct change changes_of_threads[] = {
    {"policy", 0, policy},
    {"nice", 0, nice_value},
    {"affinity", 0, affinity},
    {"io_priority", 0, io_priority},
    {"timer_slack", 0, timer_slack},
    {"memory_policy", 0, memory_policy},
    {"user_of_thread", 0, user_of_thread},
    {"capabilities_of_thread", 0, capabilities_of_thread},
    {"restartable_sequences", 0, restartable_sequences},
    {"name", 0, name},
    {"alternate_stack", 0, alternate_stack},
    {"stack_in_block", 0, stack_in_block},
    {"memory_policy_of_block", 0, memory_policy_of_block},
    {"not_copied", 0, not_copied},
    {"wiped_in_children", 0, wiped_in_children},
    {"not_dumped", 0, not_dumped},
    {"mergeable", 0, mergeable},
    {"locked_block", 0, locked_block},
    {"sealed_block", 0, sealed_block},
    {"served_block", 0, served_block},
    {"unloaded_allocator", 0, unloaded_allocator},
    {NULL, 0, NULL},
};
