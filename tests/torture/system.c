/* Actors that change what the system allows or does: limits, mappings, advice, filters, libraries. */
#include "torture.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

/* A limit on address space that the process sets on itself counts from then on: in a child, because it is permanent. */
static void limited_child(int slot) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        enum { STEP = 16 << 20 };
        struct rlimit most = {(rlim_t)1 << 30, (rlim_t)1 << 30};
        if (setrlimit(RLIMIT_AS, &most)) _exit(0);
        size_t taken = 0;
        while (taken <= (size_t)2 << 30 && malloc(STEP)) taken += STEP;
        if (taken > (size_t)1 << 30) fail("LIMIT IGNORED: %zu MiB under RLIMIT_AS of 1,024", taken >> 20);
        _exit(0);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
        nap_us(5000);
        progress(slot);
    }
    if (child > 0 && status) fail("a child under a limit ended with %#x", status);
}

static long statm(int field) {
    char text[200];
    int file = open("/proc/self/statm", O_RDONLY);
    ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = text;
    while (field--) at = strchr(at, ' ') + 1;
    return atol(at) * 4096;
}

/* Lowers a limit to about what is in use, and raises it again. */
void *limits(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("limits");
    atomic_store(&keeps_memory, 1);
    limited_child(slot);
    while (!atomic_load(&stop)) {
        int kind = (int)below(&seed, 3), what = kind == 0 ? RLIMIT_AS : kind == 1 ? RLIMIT_DATA : RLIMIT_NOFILE;
        struct rlimit old, low;
        if (getrlimit(what, &old)) break;
        low = old;
        size_t more = below(&seed, 64) << 20;
        low.rlim_cur = kind == 0 ? (rlim_t)statm(0) + more : kind == 1 ? (rlim_t)statm(5) + more : between(&seed, 3, 50);
        if (low.rlim_cur < old.rlim_cur) setrlimit(what, &low);
        rest(slot, (long)below(&seed, 200));
        setrlimit(what, &old);
        rest(slot, (long)below(&seed, 100));
    }
    progress_end(slot);
    return unused;
}

enum { PAGE = 4096 };

/* Uses up all but a few of the mappings that the process may have, while others move blocks. */
void *mappings(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("mappings");
    long most = 65530;
    char text[32];
    int file = open("/proc/sys/vm/max_map_count", O_RDONLY);
    ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (n > 0) {
        text[n] = 0;
        most = atol(text);
    }
    if (file >= 0) close(file);
    size_t size = (size_t)most * 2 * PAGE;
    char *spare = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    atomic_store(&keeps_memory, 1);
    while (!atomic_load(&stop) && spare != MAP_FAILED && most < 200000) {
        size_t at = PAGE;
        /* Takes all mappings. Then some are given back, and taken again one by one. */
        for (; at + PAGE < size && mprotect(spare + at, PAGE, PROT_READ) == 0; at += 2 * PAGE)
            if (at % (1 << 20) == PAGE) progress(slot);
        for (int round = 0; round < 30 && !atomic_load(&stop); round++) {
            size_t back = below(&seed, 12) * 2 * PAGE;
            for (size_t k = 0; k < back && at > 3 * PAGE; k += 2 * PAGE) mprotect(spare + (at -= 2 * PAGE), PAGE, PROT_NONE);
            for (int k = 0; k < 12; k++) {
                rest(slot, 2);
                unsigned char *block;
                size_t length;
                int i = borrow_block(&seed, 512 << 10, &block, &length);
                if (i >= 0) {
                    resize_borrowed(i, length + length / 2 + (4 << 20));
                    resize_borrowed(i, length);
                    give_back(i);
                }
                if (mprotect(spare + at, PAGE, PROT_READ) == 0) at += 2 * PAGE;
            }
        }
        mprotect(spare, size, PROT_NONE);
        rest(slot, 50);
    }
    if (spare != MAP_FAILED) munmap(spare, size);
    progress_end(slot);
    return unused;
}

/* The program locks and marks parts of its blocks, as databases do, and resizes some. */
void *advice(void *unused) {
    static const int advices[] = {MADV_DONTDUMP, MADV_DODUMP, MADV_NOHUGEPAGE, MADV_HUGEPAGE, MADV_COLD, MADV_WILLNEED};
    uint64_t seed = new_seed();
    int slot = progress_begin("advice");
    atomic_store(&keeps_memory, 1);
    for (; !atomic_load(&stop); progress(slot)) {
        unsigned char *block;
        size_t length;
        int i = borrow_block(&seed, 65536, &block, &length);
        if (i < 0) {
            nap_us(500);
            continue;
        }
        for (int k = 0; k < 8; k++) {
            unsigned char *at = (unsigned char *)(((uintptr_t)block + below(&seed, length - 2 * PAGE) + PAGE - 1) & -(uintptr_t)PAGE);
            if (one_in(&seed, 3))
                mlock(at, PAGE);
            else
                madvise(at, PAGE, advices[below(&seed, sizeof advices / sizeof *advices)]);
        }
        if (one_in(&seed, 3) && live_bytes() < 64 << 20) resize_borrowed(i, length + below(&seed, length));
        if (one_in(&seed, 2)) munlock(block, length / PAGE * PAGE);
        give_back(i);
        nap_us(500);
    }
    progress_end(slot);
    return unused;
}

/* Sets a filter for all threads, or for the calling one. */
static void put_in_force(struct sock_fprog *filter, int all) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return;
    if (all)
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, filter);
    else
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter);
}

/* After a while the program sets a filter that may refuse a call of neap's. */
void *filters(void *unused) {
    static const int calls[] = {-1, __NR_madvise, __NR_process_madvise, __NR_membarrier, __NR_ioctl, __NR_mremap, __NR_openat, -1};
    static const int errors[] = {EPERM, ENOSYS, EINVAL, ENOMEM, EAGAIN};
    uint64_t seed = new_seed();
    int slot = progress_begin("filters");
    rest(slot, (long)below(&seed, 1500));
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[below(&seed, sizeof calls / sizeof *calls)], 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errors[below(&seed, sizeof errors / sizeof *errors)]),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    atomic_store(&filtered, 1);
    if (code[1].k != (unsigned)-1) atomic_store(&keeps_memory, 1);
    int all = one_in(&seed, 2);
    put_in_force(&filter, all);
    rest(slot, 1 << 30);
    progress_end(slot);
    return unused;
}

/* After a while the program sets a filter that ends it for some of the calls that neap makes but does not need. Actors
   beside this one make none of them: neither they nor the end of the run may open files. */
void *sandbox(void *unused) {
    static const int calls[] = {__NR_membarrier, __NR_process_madvise, __NR_ioctl,   __NR_pread64,     __NR_openat,
                                __NR_lseek,      __NR_fcntl,           __NR_dup3,    __NR_capget,      __NR_get_robust_list,
                                __NR_gettid,     __NR_close_range,     __NR_prctl,   __NR_prlimit64,   __NR_memfd_create,
                                __NR_getppid,    __NR_mincore,         __NR_tgkill,  __NR_userfaultfd, __NR_unshare};
    enum { COUNT = sizeof calls / sizeof *calls };
    uint64_t seed = new_seed();
    int slot = progress_begin("sandbox");
    struct sock_filter code[2 * COUNT + 2];
    unsigned short n = 0;
    unsigned verdict = one_in(&seed, 4) ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    int all = one_in(&seed, 2);
    for (int i = 0; i < COUNT; i++) {
        if (!all && one_in(&seed, 2)) continue;
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
        if (calls[i] == __NR_openat) atomic_store(&keeps_memory, 1);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {n, code};
    rest(slot, (long)below(&seed, 1500));
    atomic_store(&filtered, 1);
    put_in_force(&filter, one_in(&seed, 2));
    rest(slot, 1 << 30);
    progress_end(slot);
    return unused;
}

/* Loads and unloads a library that allocates when it starts and ends. */
void *libraries(void *unused) {
    const char *name = getenv("TORTURE_PLUGIN");
    uint64_t seed = new_seed();
    int slot = progress_begin("libraries");
    for (; !atomic_load(&stop) && name; progress(slot)) {
        void *handle = dlopen(name, one_in(&seed, 2) ? RTLD_NOW : RTLD_LAZY | RTLD_LOCAL);
        if (handle) {
            void *(*make)(size_t) = (void *(*)(size_t))dlsym(handle, "plugin_make");
            void *p = make ? make(between(&seed, 1, 100000)) : NULL;
            dlclose(handle);
            free(p);
        }
        nap_us(200);
    }
    progress_end(slot);
    return unused;
}
