/* What a process does to its memory as a whole: it locks all of it, and debuggers write it to a file. */
#include "check.h"
#include "filter.h"
#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4
#endif

/* Bytes in `from..to` that lie in mappings with this flag in /proc/self/smaps (`with`), or without it. */
static size_t bytes_of(const char *flag, int with, uintptr_t from, uintptr_t to) {
    static char line[4096];
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    size_t bytes = 0;
    unsigned long start = 0, end = 0, a, b;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) start = a, end = b;
        if (strncmp(line, "VmFlags:", 8)) continue;
        unsigned long low = start > from ? start : from, high = end < to ? end : to;
        if (low < high && (strstr(line, flag) != NULL) == with) bytes += high - low;
    }
    fclose(file);
    return bytes;
}
#define CHECK_FLAG(flag, with, p, len) \
    CHECK_AT(bytes_of(flag, with, (uintptr_t)(p), (uintptr_t)(p) + (len)) == (len), len)

/* Takes blocks of all kinds and fills them; all of them must be locked. */
static void check_new_blocks(void) {
    static const size_t SIZES[] = {16, 200, 5000, 40000, 300000, 1 << 20, 20 << 20, 100 << 20};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        size_t size = SIZES[i], count = size < MIB ? 3 * MIB / size : 1;
        for (size_t n = 0; n < count; n++) {
            char *p = malloc(size);
            CHECK(p);
            memset(p, 1, size);
            if (n + 1 == count) CHECK_FLAG(" lo", 1, p, size);
        }
    }
}

static void lock_all(int flags) {
    if (mlockall(flags)) SKIP("mlockall is refused: errno %d", errno);
}

/* What is allocated after mlockall(MCL_FUTURE) is locked. */
static void first_block(void) {
    lock_all(MCL_FUTURE);
    check_new_blocks();
    CHECK_AT(status_kib("VmLck:") < 220 << 10, status_kib("VmLck:"));
}
static void future(void) {
    free(malloc(10));
    lock_all(MCL_FUTURE);
    check_new_blocks();
}

static void current_and_future(void) {
    free(malloc(10));
    lock_all(MCL_CURRENT | MCL_FUTURE);
    check_new_blocks();
    /* Neither reservations nor much that no block uses. */
    CHECK_AT(status_kib("VmLck:") < 220 << 10, status_kib("VmLck:"));
    CHECK(munlockall() == 0 && status_kib("VmLck:") == 0);
}

/* The same where the program makes the system call itself. */
static long bare_mlockall(long flags) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_mlockall), "D"(flags) : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = SYS_mlockall, first __asm__("x0") = flags;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number) : "memory");
    result = first;
#endif
    return result;
}
static void future_without_notice(void) {
    free(malloc(10));
    if (bare_mlockall(MCL_FUTURE)) SKIP("mlockall is refused");
    char *p = NULL;
    /* The first blocks lie in memory that was mapped before. */
    for (int i = 0; i < 400; i++) CHECK((p = malloc(20000)));
    CHECK_FLAG(" lo", 1, p, 20000);
    check_new_blocks();
}

/* Memory that is locked when it is touched is not populated before. */
static void future_on_fault(void) {
    lock_all(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    long before = status_kib("VmRSS:");
    for (int i = 0; i < 64; i++) CHECK(malloc(MIB));
    CHECK_AT(status_kib("VmRSS:") < before + (8 << 10), status_kib("VmRSS:"));
    check_new_blocks();
}

/* A process of an ordinary user that may lock little. */
static void become_user(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (limit.rlim_max < 8 * MIB) SKIP("less than 8 MiB may be locked");
    limit.rlim_cur = 8 * MIB;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() == 0) CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}
static void *nothing(void *p) { return p; }
static void check_small_thread(void) {
    pthread_t thread;
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 64 << 10) == 0);
    CHECK((errno = pthread_create(&thread, &attr, nothing, NULL)) == 0 && pthread_join(thread, NULL) == 0);
}
static void check_until_refused(void) {
    static char *p[64];
    int count = 0;
    while (count < 64 && (p[count] = malloc(MIB))) memset(p[count++], 1, MIB);
    CHECK_AT(count >= 2 && count < 8 && (errno == ENOMEM || !strict()), count);
    CHECK_FLAG(" lo", 1, p[0], MIB);
    CHECK_AT(status_kib("VmLck:") <= 8 << 10, status_kib("VmLck:"));
    size_t small = 0;
    while (small < 200000 && malloc(100)) small++;
    CHECK_AT(small > 100 && small < 80000, small);
    while (count > 0) free(p[--count]);
    CHECK(malloc(MIB) && malloc(100));
}

static void first_block_as_user(void) {
    become_user();
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    free(malloc(10));
    /* neap has its reservations all the same. */
    CHECK_AT(status_kib("VmSize:") > 60 << 20 || !strict(), status_kib("VmSize:"));
    check_small_thread();
    check_until_refused();
}

static void as_user(void) {
    free(malloc(10));
    become_user();
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    CHECK_AT(status_kib("VmLck:") > 1 << 10, status_kib("VmLck:"));
    CHECK_FLAG(" lo", 1, (uintptr_t)&as_user & -4096, 4096);
    check_small_thread();
    check_until_refused();
}

/* What there is now, and nothing that comes later. */
static void current_as_user(void) {
    become_user();
    CHECK(mlockall(MCL_FUTURE) == 0);
    char *now = malloc(300000);
    CHECK(now && mlockall(MCL_CURRENT) == 0);
    CHECK_FLAG(" lo", 1, now, 300000);
    char *later = malloc(200 * MIB);
    CHECK(later);
    CHECK_FLAG(" lo", 0, later, 200 * MIB);
    free(later);
    CHECK(munlockall() == 0 && status_kib("VmLck:") == 0);
    CHECK_FLAG(" lo", 0, now, 300000);
    errno = 0;
    CHECK(mlockall(64) == -1 && errno == EINVAL);
}

/* More than it may lock without neap. */
static void too_much_as_user(void) {
    char *p = malloc(9 * MIB);
    CHECK(p);
    become_user();
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == -1 && errno == ENOMEM);
    CHECK(status_kib("VmLck:") == 0 && malloc(20 * MIB));
}

/* A daemon locks all its memory, then gives its rights up. */
static void rights_given_up(void) {
    if (geteuid()) SKIP("not root");
    free(malloc(10));
    lock_all(MCL_CURRENT | MCL_FUTURE);
    become_user();
    check_small_thread();
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    CHECK(malloc(500000));
    check_until_refused();
}

/* Blocks that other threads take while one forks, and one locks and unlocks all memory. */
static atomic_int locks_again = 1;
static void *locks_all(void *unused) {
    while (locks_again) {
        lock_all(MCL_CURRENT);
        munlockall();
    }
    return unused;
}
static void *keeps_bytes(void *number) {
    enum { KEPT = 50 };
    unsigned char *kept[KEPT] = {0}, mark = (unsigned char)(long)number;
    size_t sizes[KEPT] = {0};
    for (unsigned n = 0; locks_again; n++) {
        unsigned i = n % KEPT;
        for (size_t at = 0; at < sizes[i]; at++) CHECK_AT(kept[i][at] == mark, (long)at);
        free(kept[i]);
        sizes[i] = n % 3 ? 1 + n * 7919 % 3000 : 1 + n * 7919 % 400000;
        CHECK(kept[i] = malloc(sizes[i]));
        memset(kept[i], mark, sizes[i]);
    }
    for (int i = 0; i < KEPT; i++) free(kept[i]);
    return NULL;
}
static void beside_forks(void) {
    pthread_t threads[3];
    CHECK(pthread_create(&threads[0], NULL, locks_all, NULL) == 0);
    for (long i = 1; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, keeps_bytes, (void *)i) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        CHECK(child < 0 || waitpid(child, NULL, 0) == child);
    }
    locks_again = 0;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* What goes back of locked memory, and what is said about it. */
static void trimmed(void) {
    size_t (*neap_trim)(size_t, uint64_t) = (size_t (*)(size_t, uint64_t))dlsym(RTLD_DEFAULT, "neap_trim");
    if (!neap_trim) SKIP("not neap");
    lock_all(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    char *p[16], *small[4000];
    for (int i = 0; i < 16; i++) memset(p[i] = malloc(4 * MIB), 1, 4 * MIB);
    for (int i = 0; i < 4000; i++) memset(small[i] = malloc(4000), 1, 4000);
    for (int i = 0; i < 16; i++) free(p[i]);
    /* Holes in slabs. */
    for (int i = 0; i < 4000; i++) if (i % 16) free(small[i]);
    long before = status_kib("VmRSS:");
    long said = neap_trim(0, 0) >> 10, went = before - status_kib("VmRSS:");
    CHECK_AT(said - went < 1024 && went - said < 1024, said);
    /* Linux 5.18 takes locked memory back. */
    int newer = madvise(NULL, 0, 24) == 0;
    CHECK_AT(newer ? went > 64 << 10 : went < 1 << 10, went);
    CHECK(malloc_trim(0) == 0);
    char *q = calloc(1, 4 * MIB);
    for (size_t i = 0; i < 4 * MIB; i++) CHECK(q[i] == 0);
    CHECK_FLAG(" lo", 1, q, 4 * MIB);
}

/* Bytes that gcore would write. */
static size_t dumped(void) { return bytes_of(" dd", 0, 0, (uintptr_t)1 << 47); }

static void core_dump(void) {
    size_t before = dumped(), used = 0;
    CHECK_AT(before < 16 * MIB, before);
    static char *p[20000];
    for (size_t i = 0; i < 20000; i++) {
        size_t size = i % 100 ? 1000 : 30000;
        CHECK((p[i] = malloc(size)));
        memset(p[i], 1, size);
        used += size;
        if (i % 1000 == 0) {
            CHECK_FLAG(" dd", 0, p[i], size);
            CHECK_AT(dumped() <= before + used * 6 / 5 + 2 * MIB, i);
        }
    }
    for (size_t size = 50000; size < 300 * MIB; size *= 3) {
        char *q = malloc(size);
        CHECK(q);
        CHECK_FLAG(" dd", 0, q, size);
        CHECK((q = realloc(q, size * 2)));
        CHECK_FLAG(" dd", 0, q, size * 2);
        free(q);
    }
}

/* A block that its owner keeps out of dumps: the next owner's data are in them. */
static void core_dump_after_advice(void) {
    if (!strict()) SKIP("not neap");
    for (int i = 0; i < 100; i++) {
        char *p = malloc(300000);
        CHECK(p);
        CHECK_FLAG(" dd", 0, p, 300000);
        CHECK(madvise((void *)(((uintptr_t)p + 4095) & -4096), 200000, MADV_DONTDUMP) == 0);
        free(p);
    }
}

/* Under a filter, where neap makes no unusual call. */
static void core_dump_filtered(void) {
    free(malloc(10));
    filter(all_but(__NR_userfaultfd, SECCOMP_RET_ERRNO | EPERM));
    for (int i = 0; i < 3000; i++) {
        char *p = malloc(30000);
        CHECK(p);
        if (i % 500 == 0) CHECK_FLAG(" dd", 0, p, 30000);
    }
}

/* Ranges of blocks whose faults the program handles itself, by a thread that allocates. */
static int faults_fd;
static _Atomic uintptr_t range_start, range_end;
static atomic_int stop;
static void *handle_faults(void *page) {
    while (!stop) {
        struct pollfd ready = {.fd = faults_fd, .events = POLLIN};
        struct uffd_msg message;
        if (poll(&ready, 1, 50) <= 0 || read(faults_fd, &message, sizeof message) != sizeof message) continue;
        free(memset(malloc(300000), 1, 2000));
        free(memset(malloc(1000), 1, 1000));
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        uintptr_t at = message.arg.pagefault.address & -4096ul;
        CHECK_AT(at >= range_start && at < range_end, at);
        struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)page, .len = 4096};
        struct uffdio_range woken = {at, 4096};
        if (ioctl(faults_fd, UFFDIO_COPY, &copy)) ioctl(faults_fd, UFFDIO_WAKE, &woken);
    }
    return NULL;
}
static void check_registered(uint64_t features) {
    if (sysconf(_SC_PAGESIZE) != 4096) SKIP("OS pages of another size");
    faults_fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    if (faults_fd < 0 || ioctl(faults_fd, UFFDIO_API, &api)) SKIP("userfaultfd is refused: errno %d", errno);
    pthread_t thread;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(page != MAP_FAILED && pthread_create(&thread, NULL, handle_faults, page) == 0);
    for (int round = 0; round < 100; round++) {
        size_t size = 200000 + round * 4096;
        char *p = malloc(size);
        CHECK(p);
        struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
        range.range.start = ((uintptr_t)p + 4095) & -4096;
        range.range.len = (size - 8192) & -4096;
        range_start = range.range.start;
        range_end = range.range.start + range.range.len;
        if (round % 2) CHECK(ioctl(faults_fd, UFFDIO_REGISTER, &range) == 0);
        else CHECK(syscall(SYS_ioctl, faults_fd, UFFDIO_REGISTER, &range) == 0);
        fill(p, size, round);
        if (round % 3 == 0) CHECK((p = realloc(p, size * 3)));
        CHECK_FILL(p, size, round);
        free(p);
        range_start = range_end = 0;
        if (round % 10 == 0) malloc_trim(0);
        if (round % 10 == 5) usleep(20000);
        char *q = calloc(1, size);
        for (size_t i = 0; i < size; i++) CHECK(q[i] == 0);
        memset(q, 2, size);
        free(q);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}
static void registered(void) { check_registered(0); }
static void registered_with_events(void) {
    check_registered(UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP);
}

static const struct test_case CASES[] = {
    CASE(first_block), CASE(future), CASE(current_and_future), CASE(future_without_notice), CASE(future_on_fault), CASE(first_block_as_user),
    CASE(as_user),
    CASE(current_as_user), CASE(too_much_as_user), CASE(rights_given_up), CASE(beside_forks), CASE(trimmed), CASE(core_dump),
    CASE(core_dump_after_advice), CASE(core_dump_filtered), CASE(registered), CASE(registered_with_events),
};
TEST_MAIN(CASES)
