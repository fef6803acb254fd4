/* Memory, mappings and system calls that run out or are refused. */
#include "check.h"
#include "filter.h"
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

/* Blocks of `size` until NULL or `most`, linked through their first word. */
static size_t take_until_null(size_t size, size_t most, void ***list) {
    size_t count = 0;
    for (; count < most; count++) {
        errno = 0;
        void **p = malloc(size);
        if (!p) {
            CHECK_AT(errno == ENOMEM, size);
            break;
        }
        *p = *list;
        *list = p;
    }
    return count;
}
static void free_all(void ***list) {
    while (*list) {
        void **next = **list;
        free(*list);
        *list = next;
    }
}
/* Ordinary work of a healthy process. */
static void work(void) {
    enum { N = 2000 };
    char *p[N];
    for (int i = 0; i < N; i++) {
        p[i] = i % 4 ? malloc(i * 7) : calloc(i, 7);
        CHECK_AT(p[i], i);
        fill(p[i], i * 7, i);
    }
    for (int i = 0; i < N; i += 2) {
        p[i] = realloc(p[i], i * 11 + 1);
        CHECK_AT(p[i], i);
    }
    for (int i = 0; i < N; i++) {
        CHECK_FILL(p[i], i * 7, i);
        free(p[i]);
    }
    char *big = malloc(4 << 20);
    CHECK(big);
    memset(big, 1, 4 << 20);
    free(big);
}

/* Runs with vm.overcommit_memory=2. */
static void overcommit_never(void) {
    void **list = NULL;
    work();
    size_t count = take_until_null(64u << 20, 100000, &list);
    printf("%zu blocks of 64 MiB until NULL\n", count);
    CHECK_AT(count < 100000, count);
    CHECK(count > 0);
    free_all(&list);
    work();
}

static void data_limit(void) {
    struct rlimit limit = {((size_t)status_kib("VmData:") << 10) + (64u << 20), RLIM_INFINITY};
    void **list = NULL;
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (size_t size = 64; size <= (4u << 20); size *= 16) {
        size_t count = take_until_null(size, (256u << 20) / size, &list);
        CHECK_AT(count * size < (100u << 20), count * size);
        CHECK_AT(count * size > (16u << 20), count * size);
        free_all(&list);
    }
    work();
}

/* Nearly all of RLIMIT_DATA can be had in blocks, and in other ways once they are free. The limit leaves 64 MiB more
   than the process has at its start, with what neap has committed and not used: so a little more can be had. */
static void *nothing(void *arg) { return arg; }
static void used_up(size_t size, size_t least) {
    free(malloc(100));
    struct rlimit limit = {((size_t)status_kib("VmData:") << 10) + (64u << 20), RLIM_INFINITY};
    void **list = NULL;
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    size_t count = take_until_null(size, (256u << 20) / size, &list);
    printf("%zu KiB in blocks of %zu\n", count * size >> 10, size);
    CHECK_AT(count * size >> 10 > least, count * size);
    free_all(&list);
    void *mapping = MAP_FAILED;
    for (int tenths = 0; tenths < 100 && mapping == MAP_FAILED; tenths++) {
        usleep(100000);
        mapping = mmap(NULL, 48 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    CHECK_AT(mapping != MAP_FAILED, size);
    CHECK(munmap(mapping, 48 << 20) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    work();
}
/* Blocks without waste: a MiB more than what the chunks of 64 KiB and their bits leave. Blocks that would waste a part
   of their chunks: as much as mappings hold. */
static void data_limit_used_up(void) { used_up(1000, 64600); }
static void data_limit_used_up_large(void) { used_up(200000, 66700); }

/* Blocks that grow, under a limit that was set after most of the heap's addresses were taken. A block that cannot grow
   stays unchanged. */
static void grow_under(int resource, rlim_t most) {
    struct rlimit limit = {most, RLIM_INFINITY};
    void **early = NULL;
    CHECK(take_until_null(300000, 150, &early) == 150);
    CHECK(setrlimit(resource, &limit) == 0);
    size_t size = 600000;
    char *p = malloc(size);
    CHECK(p);
    fill(p, size, 1);
    while (size < (60u << 20)) {
        void *between = malloc(100000);
        char *q = realloc(p, size + size / 3);
        CHECK_FILL(q ? q : p, size, 1);
        if (!q) break;
        p = q;
        size += size / 3;
        fill(p, size, 1);
        free(between);
    }
    printf("grown to %zu\n", size);
    free(p);
    free_all(&early);
    work();
}
static void address_limit_lowered(void) { grow_under(RLIMIT_AS, 1ul << 30); }
static void data_limit_lowered(void) { grow_under(RLIMIT_DATA, 100u << 20); }
static void data_limit_below(void) { grow_under(RLIMIT_DATA, 4u << 20); }

static void *working_thread(void *arg) {
    work();
    return arg;
}

/* A limit on address space that is set when the heap exists: the program's own mappings and threads work while there is
   room, and then allocations return NULL. */
static void use_what_is_left(size_t limit) {
    void **list = NULL;
    for (int i = 0; i < 3; i++) {
        void *own = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(own != MAP_FAILED);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, working_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
        char *p = malloc(limit / 4);
        CHECK(p);
        memset(p, 1, limit / 4);
        CHECK(!malloc(limit) && errno == ENOMEM);
        free(p);
        for (size_t size = 1000; size <= (16u << 20); size *= 128) {
            size_t count = take_until_null(size, limit / size + 1, &list);
            printf("%zu MiB in blocks of %zu\n", count * size >> 20, size);
            CHECK_AT(count * size < limit && count * size > limit / 2, count * size);
            free_all(&list);
        }
        CHECK(munmap(own, 1 << 20) == 0);
    }
    work();
}
static void address_limit_later(void) {
    struct rlimit limit = {1 << 30, RLIM_INFINITY};
    work();
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    use_what_is_left(limit.rlim_cur);
}
/* Half of the blocks went back to the system, the other half is free and dirty: no range of one state is long enough.
   */
static void free_parts_under_limit(void) {
    static void *blocks[1024];
    struct rlimit limit = {512u << 20, RLIM_INFINITY};
    size_t count = 0;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    while (count < 1024 && (blocks[count] = malloc(1 << 20))) fill(blocks[count], 1 << 20, count), count++;
    CHECK_AT(count > 256 && count < 512, count);
    for (size_t i = 0; i < count; i += 2) free(blocks[i]);
    malloc_trim(0);
    for (size_t i = 1; i < count; i += 2) {
        CHECK_FILL(blocks[i], 1 << 20, i);
        free(blocks[i]);
    }
    /* Under this limit an arena has 32 MiB. */
    size_t most = 24u << 20;
    void *p = malloc(most);
    CHECK(p);
    p = realloc(p, most + (1 << 20));
    CHECK(p);
    free(p);
    CHECK((p = calloc(1, most)));
    free(p);
    work();
}
/* What a thread frees last waits in its caches. Blocks of other sizes, also of another thread, are made of it. */
static atomic_int turn;
static void *small_blocks_at_turn(void *arg) {
    void **list = NULL;
    while (turn == 0) usleep(1000);
    size_t count = take_until_null(1000, 100000, &list);
    CHECK_AT(count > 1500, count);
    free_all(&list);
    return arg;
}
static void caches_under_limit(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, small_blocks_at_turn, NULL) == 0);
    struct rlimit limit = {((size_t)status_kib("VmData:") << 10) + (64u << 20), RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (size_t wanted = 1000; wanted < (1 << 20); wanted *= 30) {
        void **list = NULL, **some = NULL;
        CHECK(take_until_null(1 << 20, 1000, &list) > 16);
        take_until_null(wanted, 100000, &some);
        for (int i = 0; i < 2; i++) {
            void **next = *list;
            free(list);
            list = next;
        }
        if (wanted == 1000) {
            turn = 1;
            CHECK(pthread_join(thread, NULL) == 0);
        }
        size_t count = take_until_null(wanted, 100000, &some);
        CHECK_AT(count * wanted > (3 << 19), count);
        free_all(&some);
        free_all(&list);
    }
    work();
}
static void address_limit_by_syscall(void) {
    struct rlimit limit = {1 << 30, RLIM_INFINITY};
    work();
    CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, NULL) == 0);
    use_what_is_left(limit.rlim_cur);
}
/* Another thread may be in any call meanwhile, so the page map (2 GiB of addresses) stays. */
static atomic_int busy = 1;
static void *work_until_told(void *arg) {
    while (busy) work();
    return arg;
}
static void address_limit_beside_threads(void) {
    struct rlimit limit = {(rlim_t)6 << 30, RLIM_INFINITY};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, work_until_told, NULL) == 0);
    work();
    CHECK(prlimit(getpid(), RLIMIT_AS, &limit, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        void *own = mmap(NULL, 1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(own != MAP_FAILED && munmap(own, 1 << 30) == 0);
        CHECK(!malloc(limit.rlim_cur));
        work();
    }
    busy = 0;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    work();
}
/* Another process sets the limit. */
static void address_limit_from_outside(void) {
    void **list = NULL;
    work();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit limit = {(rlim_t)4 << 30, RLIM_INFINITY};
        _exit(prlimit(getppid(), RLIMIT_AS, &limit, NULL) != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) SKIP("prlimit of another process is refused");
    size_t count = take_until_null(1 << 20, 8 << 10, &list);
    printf("%zu MiB\n", count);
    CHECK_AT(count < (4 << 10), count);
    free_all(&list);
    work();
}
/* The child of a vfork has its own limits, but shares its parent's memory. */
static void address_limit_in_vfork(void) {
    struct rlimit limit = {1 << 30, RLIM_INFINITY};
    work();
    size_t before = status_kib("VmSize:");
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) _exit(setrlimit(RLIMIT_AS, &limit) != 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_AT(status_kib("VmSize:") + 4096 >= before, status_kib("VmSize:"));
    work();
}

/* Blocks grow of which the program has locked and marked parts, so that they lie in many mappings, while the process
   may lock little memory and has few mappings left. */
static char *region;
static const size_t REGION = (size_t)200000 * 4096;
static size_t use_up_mappings(void);
static void many_mappings_moved(void) {
    struct rlimit limit = {1 << 20, 1 << 20};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() == 0) CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    mlockall(MCL_FUTURE | MCL_ONFAULT); /* refused under some limits, which is fine */
    munlockall();
    size_t page = sysconf(_SC_PAGESIZE), moved = 0;
    for (int left = -1; left < 40; left++) {
        if (left == 0) use_up_mappings();
        if (left > 0) CHECK(munmap(region + (size_t)left * 2 * page, page) == 0); /* one more mapping may be had */
        for (int parts = 0; parts < 24; parts += 5) {
            size_t size = 2 << 20;
            char *p = malloc(size), *q = p, *wall = malloc(size);
            if (!p || !wall) CHECK(left >= 0);
            if (p) {
                fill(p, size, parts);
                for (int i = 0; i < parts; i++)
                    if (i % 2) mlock(p + (i * 2 + 1) * 8 * page, page);
                    else madvise((void *)(((uintptr_t)p + (i * 2 + 1) * 8 * page) & -page), page, MADV_DONTDUMP);
                q = realloc(p, size * 3);
                CHECK_FILL(q ? q : p, size, parts);
                moved += q && q != p;
                if (q) memset(q, 1, size * 3);
            }
            free(q ? q : p);
            free(wall);
        }
    }
    printf("%zu blocks moved\n", moved);
    CHECK(moved > 0);
    CHECK(munmap(region, REGION) == 0);
    work();
}

/* Uses up all mappings but a few: every other OS page of a range has other rights. */
static size_t use_up_mappings(void) {
    size_t page = sysconf(_SC_PAGESIZE), used = 0;
    region = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) SKIP("no address space for the region");
    for (size_t at = page; at < REGION; at += 2 * page, used += 2)
        if (mprotect(region + at, page, PROT_READ)) return used;
    SKIP("vm.max_map_count is too high to reach");
}
static void mappings_used_up(void) {
    void **early = NULL, **list = NULL;
    for (size_t size = 100; size < (64u << 20); size *= 3) CHECK(take_until_null(size, 20, &early) == 20);
    printf("%zu mappings used up\n", use_up_mappings());
    for (size_t size = 32; size < (64u << 20); size *= 4) take_until_null(size, 2000000 / size + 3, &list);
    free_all(&early); /* what was taken before can be freed although no mapping can be split */
    free_all(&list);
    for (size_t size = 32; size < (64u << 20); size *= 4) take_until_null(size, 2000000 / size + 3, &list);
    char *p = malloc(1u << 20);
    if (p) {
        fill(p, 1u << 20, 1);
        char *q = realloc(p, 8u << 20);
        CHECK_FILL(q ? q : p, 1u << 20, 1);
        free(q ? q : p);
    }
    CHECK(munmap(region, REGION) == 0);
    work();
    free_all(&list);
    work();
}
/* Threads start, run and end although the heap can get no new mapping. */
static void *little(void *arg) {
    void **list = NULL;
    take_until_null(64, 100, &list);
    free_all(&list);
    return arg;
}
static void mappings_used_up_threads(void) {
    pthread_t t[8];
    use_up_mappings();
    for (int round = 0; round < 20; round++) {
        int started = 0;
        while (started < 8 && pthread_create(&t[started], NULL, little, NULL) == 0) started++;
        for (int i = 0; i < started; i++) CHECK(pthread_join(t[i], NULL) == 0);
    }
    CHECK(munmap(region, REGION) == 0);
    work();
}

/* All memory is locked from the start on: reservations must not become resident. */
static void locked(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) SKIP("mlockall is refused: errno %d", errno);
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 256 << 10) == 0);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], &attr, working_thread, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
    work();
    void **list = NULL;
    CHECK(take_until_null(100, 200000, &list) == 200000);
    printf("RSS %ld\n", status_kib("VmRSS:"));
    free_all(&list);
}

/* Only the usual system calls; any other ends the process, or is refused. */
static void filtered_work(void) {
    for (int round = 0; round < 5; round++) {
        work();
        char *big = calloc(1, 200u << 20);
        CHECK(big);
        memset(big, 1, 100u << 20);
        free(big);
        big = calloc(1, 150u << 20);
        CHECK(big && big[0] == 0 && big[99u << 20] == 0);
        free(big);
    }
}
static void seccomp_kill(void) {
    filter(only_usual(SECCOMP_RET_KILL_PROCESS, 0));
    filtered_work();
}
static void seccomp_kill_after_work(void) {
    filtered_work();
    filter(only_usual(SECCOMP_RET_KILL_PROCESS, 0));
    filtered_work();
}
static void seccomp_eperm(void) {
    filter(only_usual(SECCOMP_RET_ERRNO | EPERM, 0));
    filtered_work();
}

/* madvise is permitted, but not its rare advice to populate memory. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
static void grow(void) {
    void **list = NULL;
    CHECK(malloc(20u << 20));
    CHECK(take_until_null(500, 60000, &list) == 60000 && errno == 0);
}
static void filter_advice(unsigned otherwise) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_madvise, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_WRITE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) SKIP("no seccomp filters here: errno %d", errno);
}
static void seccomp_kill_populate(void) {
    grow();
    filter_advice(SECCOMP_RET_KILL_PROCESS);
    grow();
}
/* The same for a program that was started with a filter which refuses. */
static void seccomp_no_populate(void) {
    if (!getenv("FILTERED")) {
        filter_advice(SECCOMP_RET_ERRNO | EPERM);
        CHECK(setenv("FILTERED", "1", 1) == 0);
        execl("/proc/self/exe", "limits", "seccomp_no_populate", (char *)NULL);
        CHECK(!"exec");
    }
    grow();
}

/* System calls of the allocator are interrupted all the time. */
static volatile sig_atomic_t ticks;
static void on_tick(int sig) { ticks += sig != 0; }
static void *big_churn(void *arg) {
    uint64_t seed = (uintptr_t)arg + 9;
    for (int i = 0; i < 300; i++) {
        size_t size = next_random(&seed) % (4u << 20) + 1;
        char *p = calloc(1, size);
        CHECK(p && p[size / 2] == 0);
        memset(p, 1, size);
        p = realloc(p, size / 2 + 1);
        CHECK(p && p[size / 4] == 1);
        free(p);
        work();
    }
    return NULL;
}
static void interrupted(void) {
    struct sigaction action = {.sa_handler = on_tick};
    struct itimerval every = {{0, 200}, {0, 200}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
    pthread_t t[2];
    for (intptr_t i = 0; i < 2; i++) CHECK(pthread_create(&t[i], NULL, big_churn, (void *)i) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(ticks > 10);
}

/* A helper thread of the allocator must not take the program's signals, nor break unshare. */
static void leave_garbage(void) {
    void **list = NULL;
    for (int round = 0; round < 3; round++) {
        CHECK(take_until_null(1u << 20, 400, &list) == 400);
        for (void **p = list; p; p = *p) memset(p + 1, 1, (1u << 20) - sizeof *p);
        free_all(&list);
    }
    CHECK(take_until_null(500, 200000, &list) == 200000);
    free_all(&list);
    usleep(1500000);
}
static void blocked_signal_stays_pending(void) {
    sigset_t set;
    leave_garbage();
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    usleep(50000);
    CHECK(sigpending(&set) == 0 && sigismember(&set, SIGUSR1));
}
static void unshare_user(void) {
    leave_garbage();
    if (unshare(CLONE_NEWUSER)) {
        if (errno != EINVAL) SKIP("user namespaces are refused: errno %d", errno);
        CHECK(!"the process has one thread");
    }
    work();
}

static const struct test_case CASES[] = {
    CASE(address_limit_lowered), CASE(data_limit_lowered), CASE(data_limit_below),
    CASE(overcommit_never), CASE(data_limit), CASE(data_limit_used_up), CASE(data_limit_used_up_large),
    CASE(mappings_used_up), CASE(mappings_used_up_threads),
    CASE(many_mappings_moved),
    CASE(address_limit_later), CASE(free_parts_under_limit), CASE(caches_under_limit), CASE(address_limit_by_syscall),
    CASE(address_limit_beside_threads), CASE(address_limit_from_outside), CASE(address_limit_in_vfork),
    CASE(locked),           CASE(seccomp_kill),  CASE(seccomp_kill_after_work),
    CASE(seccomp_kill_populate), CASE(seccomp_no_populate),
    CASE(seccomp_eperm),    CASE(interrupted),   CASE(blocked_signal_stays_pending),
    CASE(unshare_user),
};
TEST_MAIN(CASES)
