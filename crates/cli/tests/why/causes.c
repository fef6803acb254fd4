/* Plants one cause of memory that stays, by name (first argument), and prints its process. Ends with its input. A cause
   that this machine does not allow prints "no" and why. planted.rs has the account that each must have. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)
#define BOTH (PROT_READ | PROT_WRITE)
static char **given;
static int count;
static pthread_barrier_t barrier;
static volatile char sink;

/* Gives up: this machine does not allow it. */
static void no(const char *what) {
    printf("no %s: %s\n", what, strerror(errno));
    exit(0);
}
static char *map(size_t bytes) {
    char *p = mmap(0, bytes, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) no("mmap");
    return p;
}
static char *fill(char *p, size_t bytes) { return memset(p, 1, bytes); }
static char *of_file(int file, size_t bytes, int access, int flags) {
    char *p = mmap(0, bytes, access, flags, file, 0);
    if (p == MAP_FAILED) no("mmap of a file");
    return p;
}
/* A file in the folder of the program, or in memory. */
static int file(const char *folder, size_t bytes) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/neap-causes-%d", folder, getpid());
    int made = open(path, O_CREAT | O_RDWR | O_EXCL, 0600);
    if (made < 0) no(path);
    unlink(path);
    char *block = fill(malloc(MIB), MIB);
    for (size_t done = 0; done < bytes; done += MIB) if (write(made, block, MIB) != MIB) no(path);
    free(block);
    return made;
}
static char *home(void) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length] = 0;
    *strrchr(path, '/') = 0;
    return path;
}
static void *blocks(size_t bytes, size_t size) {
    void **all = 0;
    for (size_t i = 0; i < bytes / size; i++) {
        void **block = malloc(size);
        memset(block, 7, size);
        *block = all;
        all = block;
    }
    return all;
}
static void drop(void *all) {
    for (void **block = all, **next; block; block = next) next = *block, free(block);
}
static void touch(size_t bytes) {
    volatile char *p = __builtin_alloca(bytes);
    for (size_t i = 0; i < bytes; i += PAGE) p[i] = 1;
}
static void wait_here(int is_busy) {
    pthread_barrier_wait(&barrier);
    while (is_busy) sink++;
    for (;;) pause();
}
/* Has used its stack before. */
static void *idle(void *bytes) { touch((size_t)bytes); wait_here(0); return 0; }
static void *busy(void *bytes) { touch((size_t)bytes); wait_here(1); return 0; }
/* Is deep in its stack. */
static void *deep(void *bytes) {
    volatile char *p = __builtin_alloca((size_t)bytes);
    for (size_t i = 0; i < (size_t)bytes; i += PAGE) p[i] = 1;
    wait_here(0);
    return 0;
}
static void *ends(void *bytes) { touch((size_t)bytes); return 0; }
#ifdef LOCAL
static __thread char local[2 << 20];
#else
static __thread char local[64];
#endif
static void *has_local(void *unused) { fill(local, sizeof local); wait_here(0); return 0; }
static void *leaks(void *unused) {
    void **block = blocks(2 * MIB, 300);
    for (int i = 0; block; i++) { void **next = *block; if (i % 10) free(block); block = next; }
    usleep(300000);
    return 0;
}
static void *holds(void *unused) { blocks(2 * MIB, 300); wait_here(0); return 0; }
static void threads(int number, void *(*run)(void *), size_t argument) {
    pthread_t t;
    pthread_barrier_init(&barrier, 0, number + 1);
    for (int i = 0; i < number; i++) if (pthread_create(&t, 0, run, (void *)argument)) no("thread");
    pthread_barrier_wait(&barrier);
    usleep(100000);
}
static void on_stack(char *low, size_t bytes, void *(*run)(void *), size_t argument) {
    pthread_attr_t how;
    pthread_t t;
    pthread_attr_init(&how);
    if (pthread_attr_setstack(&how, low, bytes)) no("stack");
    pthread_barrier_init(&barrier, 0, 2);
    if (pthread_create(&t, &how, run, (void *)argument)) no("thread");
    pthread_barrier_wait(&barrier);
    usleep(50000);
}
#ifdef BSS
static char bss[32 << 20];
#else
static char bss[4096];
#endif
#ifdef DATA
static char data[32 << 20] = {1};
#else
static char data[4096] = {1};
#endif
/* Where the mapping ends that has an address. */
static char *end_of(void *address) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end;
    char line[4096];
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (uintptr_t)address && (uintptr_t)address < end) {
            fclose(maps);
            return (char *)end;
        }
    fclose(maps);
    return 0;
}
static void put_behind(void *address) {
    char *end = end_of(address);
    char *p = mmap(end, 8 * MIB, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (p != end) no("room behind it");
    fill(p, 8 * MIB);
}
static ucontext_t back, inside;
static void coroutine(void) { touch(600 * 1024); swapcontext(&inside, &back); }
static void stays(void) { touch(1800 * 1024); printf("%d\n", getpid()); fflush(stdout); while (getchar() != EOF); exit(0); }

static void prefork(void) { blocks(24 * MIB, 1000); if (fork()) { wait(0); exit(0); } blocks(20 * MIB, 500); }
static void forkidle(void) { blocks(24 * MIB, 1000); if (fork()) { wait(0); exit(0); } }
static void forkprivate(void) {
    char *p = fill(map(32 * MIB), 32 * MIB);
    if (fork()) { wait(0); exit(0); }
    memset(p, 2, 32 * MIB);
}
static void mlockall_threads(void) { if (mlockall(MCL_CURRENT | MCL_FUTURE)) no("mlockall"); threads(4, idle, 0); }
static void mlockall_onfault(void) { if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) no("mlockall"); threads(4, idle, 0); blocks(24 * MIB, 1000); }
static void locked(void) { char *p = malloc(32 * MIB); if (mlock(p, 32 * MIB)) no("mlock"); fill(p, 4 * MIB); }
static void sparse(void) { size_t n = 8ul << 30; char *p = map(n); madvise(p, n, MADV_NOHUGEPAGE); for (size_t i = 0; i < n; i += 2 * MIB) p[i] = 1; }
static void sparseread(void) { size_t n = 64ul << 30; char *p = map(n); madvise(p, n, MADV_NOHUGEPAGE); for (size_t i = 0; i < n; i += 2 * MIB) sink = p[i]; }
static void thpsparse(void) {
    char *p = map(66 * MIB);
    p = (char *)(((uintptr_t)p + 2 * MIB - 1) & -(2 * MIB));
    if (madvise(p, 64 * MIB, MADV_HUGEPAGE)) no("huge pages");
    for (size_t i = 0; i < 64 * MIB; i += 64 << 10) p[i] = 1;
}
static int memory(void) { int f = memfd_create("cache", 0); if (f < 0) no("memfd"); return f; }
static void memfdwrite(void) { int f = memory(); char *b = fill(malloc(MIB), MIB); for (int i = 0; i < 32; i++) if (write(f, b, MIB) < 0) no("write"); }
static char *sized(int flags) { int f = memory(); if (ftruncate(f, 32 * MIB)) no("ftruncate"); return fill(of_file(f, 32 * MIB, BOTH, flags), 32 * MIB); }
static void memfdmap(void) { sized(MAP_SHARED); }
static void memfdpriv(void) { sized(MAP_PRIVATE); }
static void memfdhalf(void) {
    int f = memory();
    if (ftruncate(f, 32 * MIB)) no("ftruncate");
    fill(of_file(f, 16 * MIB, BOTH, MAP_SHARED), 16 * MIB);
    char *b = fill(malloc(MIB), MIB);
    for (int i = 16; i < 32; i++) if (pwrite(f, b, MIB, i * MIB) < 0) no("write");
}
static void tmpdel(void) { file("/dev/shm", 32 * MIB); }
static void tmpdelmap(void) { char *p = of_file(file("/dev/shm", 32 * MIB), 32 * MIB, BOTH, MAP_SHARED); for (size_t i = 0; i < 32 * MIB; i += PAGE) sink = p[i]; }
static void tmppriv(void) { fill(of_file(file("/dev/shm", 32 * MIB), 32 * MIB, BOTH, MAP_PRIVATE), 32 * MIB); }
static void shmanon(void) { fill(mmap(0, 32 * MIB, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 32 * MIB); }
static void sysv(void) {
    int id = shmget(IPC_PRIVATE, 32 * MIB, IPC_CREAT | 0600);
    if (id < 0) no("shmget");
    char *p = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    fill(p, 32 * MIB);
}
static void devzero(void) { int f = open("/dev/zero", O_RDWR); if (f < 0) no("/dev/zero"); fill(of_file(f, 32 * MIB, BOTH, MAP_PRIVATE), 32 * MIB); }
static void dual(void) {
    int f = memory();
    if (ftruncate(f, 32 * MIB)) no("ftruncate");
    fill(of_file(f, 32 * MIB, BOTH, MAP_SHARED), 32 * MIB);
    char *code = of_file(f, 32 * MIB, PROT_READ | PROT_EXEC, MAP_SHARED);
    for (size_t i = 0; i < 32 * MIB; i += PAGE) sink = code[i];
}
static void jit(void) { for (int i = 0; i < 1000; i++) { char *p = fill(map(32768), 32768); mprotect(p, 32768, PROT_READ | PROT_EXEC); } }
static void execdata(void) { fill(mmap(0, 32 * MIB, BOTH | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 32 * MIB); }
static void vec(void) { char *p = 0; for (size_t size = 16; size <= 32 * MIB; size *= 2) { char *q = fill(malloc(size), size); free(p); p = q; } bss[0] = p[0]; }
static void toppad(void) { mallopt(M_TRIM_THRESHOLD, 1 << 30); drop(blocks(24 * MIB, 4000)); }
static void dynthresh(void) {
    char *kept[4];
    free(fill(malloc(30 * MIB), 30 * MIB));
    for (int i = 0; i < 4; i++) { kept[i] = fill(malloc(8 * MIB), 8 * MIB); sink = *(char *)malloc(100); }
    for (int i = 0; i < 4; i++) free(kept[i]);
}
static void bssfull(void) { fill(bss, sizeof bss); }
static void bsssplit(void) { fill(bss, sizeof bss); for (size_t i = MIB; i + MIB < sizeof bss; i += 2 * MIB) mprotect((char *)(((uintptr_t)bss + i) & -PAGE), PAGE, PROT_READ); }
static void bssadvised(void) { char *p = (char *)(((uintptr_t)bss + sizeof bss / 2) & -PAGE); madvise(p, sizeof bss / 4 & -PAGE, MADV_NOHUGEPAGE); fill(bss, sizeof bss); }
static void bssdeleted(void) { if (unlink("/proc/self/exe") && unlink(given[0])) no("unlink"); fill(bss, sizeof bss); }
static void bssjoined(void) { put_behind(bss + sizeof bss - 1); fill(bss, sizeof bss); }
/* Its own is an OS page or two. */
static void behind(void) { put_behind(bss + sizeof bss - 1); fill(bss, sizeof bss); }
static void datachanged(void) { fill(data, sizeof data); }
static void relaunched(void) {
    int from = open("/proc/self/exe", O_RDONLY), to = memory();
    char block[65536];
    for (ssize_t got; (got = read(from, block, sizeof block)) > 0;) if (write(to, block, got) != got) no("write");
    char *arguments[] = {"memory", "bssfull", 0}, *none[] = {0};
    fexecve(to, arguments, none);
    no("fexecve");
}
static void stackrun(void) { threads(3, busy, 6 * MIB); }
static void stackidle(void) { threads(4, idle, 6 * MIB); }
static void stackdeep(void) { threads(4, deep, 6 * MIB); }
static void stackkept(void) { pthread_t t[4]; for (int i = 0; i < 4; i++) pthread_create(t + i, 0, ends, (void *)(6 * MIB)); for (int i = 0; i < 4; i++) pthread_join(t[i], 0); }
static void stacklocal(void) { threads(8, has_local, 0); }
static void stackpool(void) { char *p = fill(map(32 * MIB), 32 * MIB); on_stack(p + 16 * MIB, 256 << 10, idle, 0); }
static void guarded(int number, void *(*run)(void *)) {
    char *room = map(64 * MIB);
    for (int i = number - 1; i >= 0; i--) {
        if (madvise(room + i * 8 * MIB, PAGE, 102 /* MADV_GUARD_INSTALL */)) no("MADV_GUARD_INSTALL");
        on_stack(room + i * 8 * MIB + PAGE, 8 * MIB - PAGE, run, 4 * MIB);
    }
}
static void stackguards(void) { guarded(8, deep); }
static void stackguardsrun(void) { guarded(2, busy); }
static void stackmalloc(void) { for (int i = 0; i < 8; i++) on_stack(fill(malloc(4 * MIB), 4 * MIB), 4 * MIB, idle, 0); }
static void mainstack(void) {
    struct rlimit r = {256 * MIB, 256 * MIB};
    if (count < 3) { if (setrlimit(RLIMIT_STACK, &r)) no("setrlimit"); execl("/proc/self/exe", "c", "mainstack", "x", (char *)0); }
    touch(32 * MIB);
}
static void coroutines(void) {
    for (int i = 0; i < 32; i++) {
        char *p = map(MIB + PAGE);
        mprotect(p, PAGE, PROT_NONE);
        getcontext(&inside);
        inside.uc_stack.ss_sp = p + PAGE;
        inside.uc_stack.ss_size = MIB;
        makecontext(&inside, coroutine, 0);
        swapcontext(&back, &inside);
    }
}
static void oncoroutine(void) {
    char *p = map(2 * MIB + PAGE);
    mprotect(p, PAGE, PROT_NONE);
    getcontext(&inside);
    inside.uc_stack.ss_sp = p + PAGE;
    inside.uc_stack.ss_size = 2 * MIB;
    makecontext(&inside, stays, 0);
    swapcontext(&back, &inside);
}
static void perf(void) {
    for (int i = 0; i < 4; i++) {
        struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_CPU_CLOCK, .sample_period = 1000000, .exclude_kernel = 1};
        int f = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
        if (f < 0) no("perf_event_open");
        of_file(f, PAGE + 4 * MIB, BOTH, MAP_SHARED);
    }
}
static void bpf(void) {
    union bpf_attr a;
    memset(&a, 0, sizeof a);
    a.map_type = BPF_MAP_TYPE_ARRAY, a.key_size = 4, a.value_size = 4096, a.max_entries = 4096;
    if (syscall(SYS_bpf, BPF_MAP_CREATE, &a, sizeof a) < 0) no("bpf");
}
static void pipes(void) {
    char b[65536];
    memset(b, 1, sizeof b);
    for (int i = 0; i < 200; i++) {
        int p[2];
        if (pipe(p)) no("pipe");
        fcntl(p[1], F_SETFL, O_NONBLOCK);
        while (write(p[1], b, sizeof b) > 0);
    }
}
static void lazyfree(void) { char *p = fill(map(32 * MIB), 32 * MIB); if (madvise(p, 32 * MIB, MADV_FREE)) no("MADV_FREE"); }
static void lazyhalf(void) { char *p = fill(map(32 * MIB), 32 * MIB); madvise(p, 12 * MIB, MADV_FREE); }
static void cold(void) { char *p = fill(map(32 * MIB), 32 * MIB); if (madvise(p, 32 * MIB, 20 /* MADV_COLD */)) no("MADV_COLD"); }
static void pageout(void) {
    char line[256];
    FILE *swaps = fopen("/proc/swaps", "r");
    if (!swaps || !fgets(line, sizeof line, swaps) || !fgets(line, sizeof line, swaps)) no("swap");
    char *p = fill(map(32 * MIB), 32 * MIB);
    if (madvise(p, 32 * MIB, 21 /* MADV_PAGEOUT */)) no("MADV_PAGEOUT");
}
static void pool(void) {
    char *p = mmap(0, 8 * MIB, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (p == MAP_FAILED) no("pages of the pool");
    fill(p, 8 * MIB);
}
static void populated(void) { mmap(0, 32 * MIB, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); }
static void callocpart(void) { for (int i = 0; i < 40; i++) fill(calloc(1, 4 * MIB), 512 << 10); }
static void arenaends(void) { pthread_t t[40]; for (int i = 0; i < 40; i++) pthread_create(t + i, 0, leaks, 0); for (int i = 0; i < 40; i++) pthread_join(t[i], 0); }
static void arenaslive(void) { threads(12, holds, 0); }
static void aligned(void) { blocks(1, 1); fill(aligned_alloc(2 * MIB, 32 * MIB), 32 * MIB); }
static void placed(void) { char *p = map(128 * MIB); fill((char *)(((uintptr_t)p + 64 * MIB - 1) & -(64 * MIB)), 32 * MIB); }
static void reserved(void) { char *p = map(256 * MIB); p = (char *)(((uintptr_t)p + 64 * MIB - 1) & -(64 * MIB)); mprotect(p + 32 * MIB, 32 * MIB, PROT_NONE); fill(p, 32 * MIB); }
static void manymaps(void) { for (int i = 0; i < 2000; i++) { char *p = map(32768); mprotect(p, PAGE, PROT_NONE); fill(p + PAGE, 16384); } }
static void mremapped(void) { char *p = fill(map(MIB), MIB); for (size_t n = MIB; n < 32 * MIB; n *= 2) { p = mremap(p, n, 2 * n, MREMAP_MAYMOVE); fill(p, 2 * n); } }
static void closed(void) { char *p = fill(map(32 * MIB), 32 * MIB); mprotect(p, 32 * MIB, PROT_NONE); }
static void low(void) { char *p = mmap(0, 32 * MIB, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0); if (p == MAP_FAILED) no("MAP_32BIT"); fill(p, 32 * MIB); }
static void brkown(void) { blocks(MIB, 1000); char *p = sbrk(32 * MIB); if (p == (void *)-1) no("sbrk"); fill(p, 32 * MIB); }
static void brkhole(void) { void *a = blocks(24 * MIB, 4000); sink = *(char *)sbrk(MIB); void *b = blocks(MIB, 4000); drop(a); *(void **)bss = b; }
static void named(void) { char *p = fill(map(32 * MIB), 32 * MIB); if (prctl(0x53564d41 /* PR_SET_VMA */, 0, p, 32 * MIB, "cache")) no("names of mappings"); }
static void filepriv(void) { fill(of_file(file(home(), 32 * MIB), 32 * MIB, BOTH, MAP_PRIVATE), 32 * MIB); }
static void fileshared(void) { fill(of_file(file(home(), 32 * MIB), 32 * MIB, BOTH, MAP_SHARED), 32 * MIB); }
static void fileread(void) { char *p = of_file(file(home(), 32 * MIB), 32 * MIB, PROT_READ, MAP_PRIVATE); for (size_t i = 0; i < 32 * MIB; i += PAGE) sink = p[i]; }
static void uring(void) {
    unsigned parameters[30] = {0};
    int f = syscall(425 /* io_uring_setup */, 32768, parameters);
    if (f < 0) no("io_uring");
    char *p = mmap(0, 2 * MIB, BOTH, MAP_SHARED | MAP_POPULATE, f, 0x10000000 /* the entries */);
    if (p == MAP_FAILED) no("mmap of io_uring");
    fill(p, 2 * MIB);
}
static void secret(void) { int f = syscall(447 /* memfd_secret */, 0); if (f < 0) no("memfd_secret"); if (ftruncate(f, 8 * MIB)) no("ftruncate"); fill(of_file(f, 8 * MIB, BOTH, MAP_SHARED), 8 * MIB); }
static void merged(void) { prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0); blocks(24 * MIB, 4096); }

#define CAUSE(name) {#name, name}
static const struct { const char *name; void (*plant)(void); } causes[] = {
    CAUSE(prefork), CAUSE(forkidle), CAUSE(forkprivate), CAUSE(mlockall_threads), CAUSE(mlockall_onfault), CAUSE(locked), CAUSE(sparse), CAUSE(sparseread),
    CAUSE(thpsparse), CAUSE(memfdwrite), CAUSE(memfdmap), CAUSE(memfdpriv), CAUSE(memfdhalf), CAUSE(tmpdel), CAUSE(tmpdelmap),
    CAUSE(tmppriv), CAUSE(shmanon), CAUSE(sysv), CAUSE(devzero), CAUSE(dual), CAUSE(jit), CAUSE(execdata), CAUSE(vec), CAUSE(toppad), CAUSE(dynthresh),
    CAUSE(bssfull), CAUSE(bsssplit), CAUSE(bssadvised), CAUSE(bssdeleted), CAUSE(bssjoined), CAUSE(behind), CAUSE(datachanged),
    CAUSE(relaunched), CAUSE(stackrun), CAUSE(stackidle), CAUSE(stackdeep), CAUSE(stackkept), CAUSE(stacklocal), CAUSE(stackpool),
    CAUSE(stackguards), CAUSE(stackguardsrun), CAUSE(stackmalloc), CAUSE(mainstack), CAUSE(coroutines), CAUSE(oncoroutine), CAUSE(perf), CAUSE(bpf), CAUSE(pipes), CAUSE(lazyfree),
    CAUSE(lazyhalf), CAUSE(cold), CAUSE(pageout), CAUSE(pool), CAUSE(populated), CAUSE(callocpart), CAUSE(arenaends), CAUSE(arenaslive), CAUSE(aligned), CAUSE(placed), CAUSE(reserved),
    CAUSE(manymaps), CAUSE(mremapped), CAUSE(closed), CAUSE(low), CAUSE(brkown), CAUSE(brkhole), CAUSE(named), CAUSE(filepriv), CAUSE(fileshared),
    CAUSE(fileread), CAUSE(uring), CAUSE(secret), CAUSE(merged),
};
int main(int argc, char **argv) {
    given = argv, count = argc;
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (!strcmp(argv[1], causes[i].name)) {
            causes[i].plant();
            printf("%d\n", getpid());
            fflush(stdout);
            while (getchar() != EOF);
            exit(0);
        }
    return 1;
}
