/* Limits, errors and /proc as other programs see them. */
#include "filter.h"
#include "trust.h"

/* A limit on address space that a process sets on itself applies to its later allocations. */
static void address_space_limited_later(void) {
    free(filled(100));
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    size_t taken = 0;
    while (taken < (size_t)4 << 30 && malloc(16 << 20)) taken += 16 << 20;
    printf("%zu MiB under a limit of 1,024\n", taken >> 20);
    CHECK_AT(taken <= (size_t)1 << 30, taken >> 20);
    CHECK(errno == ENOMEM);
}

/* posix_memalign that fails sets errno too, as other allocators do: programs print it. */
static void posix_memalign_sets_errno(void) {
    void *p = &p;
    errno = 0;
    CHECK(posix_memalign(&p, 64, (size_t)1 << 62) == ENOMEM);
    CHECK(errno == ENOMEM);
}

/* Tools take the first line of /proc/PID/maps as that of the program. */
static void program_comes_first(void) {
    static char exe[4096], line[4352];
    free(malloc(100));
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    CHECK(n > 0);
    int fd = open("/proc/self/maps", O_RDONLY);
    CHECK(fd >= 0 && read(fd, line, sizeof line - 1) > 0);
    close(fd);
    *strchrnul(line, '\n') = 0;
    printf("%s\n", line);
    CHECK(strstr(line, exe));
}

static void limit_data(void) {
    free(filled(100));
    struct rlimit limit = {64 << 20, 64 << 20};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
}

/* Takes all blocks of `size` that can be had, as a chain. */
static void **use_up(size_t size) {
    void **last = NULL;
    for (void **block; (block = malloc(size)); last = block) *block = last;
    return last;
}

/* Where no memory can be had, address space is useless: a malloc that fails must not take more of it each time. */
static void refused_memory_takes_no_addresses(void) {
    limit_data();
    use_up(100000);
    long before = status_kib("VmSize:");
    for (int i = 0; i < 50; i++) CHECK(malloc(100000) == NULL && errno == ENOMEM);
    CHECK_AT(status_kib("VmSize:") - before < 1 << 20, status_kib("VmSize:"));
}

/* realloc to fewer bytes succeeds without memory for another block, and leaves errno alone. */
static void shrinking_succeeds_without_memory(void) {
    static const size_t sizes[] = {1000, 20000, 300000};
    char *blocks[3];
    limit_data();
    for (int i = 0; i < 3; i++) memset(blocks[i] = filled(sizes[i]), 7, sizes[i]);
    for (size_t size = 1 << 20; size >= 16; size /= 4) use_up(size);
    for (size_t size = 16; size < 1000; size += 16) use_up(size);
    for (int i = 0; i < 3; i++) {
        errno = 77;
        char *p = realloc(blocks[i], 100);
        CHECK_AT(p, i);
        CHECK_AT(errno == 77, errno);
        for (int k = 0; k < 100; k++) CHECK_AT(p[k] == 7, i);
    }
}

/* calloc asks the kernel which OS pages hold memory. Run where the first queries fail: calloc must make later ones all
   the same, so that it does not fill what the program left untouched. */
static void questions_are_asked_again(void) {
    enum { SIZE = 32 << 20, ROUNDS = 60 };
    long most = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char *p = malloc(SIZE);
        CHECK(p);
        for (size_t at = 5 << 12; at < SIZE; at += 1 << 20) p[at] = 1;
        free(p);
        p = calloc(1, SIZE);
        CHECK(p);
        long resident = status_kib("VmRSS:");
        if (round >= ROUNDS - 4 && resident > most) most = resident;
        for (size_t at = 5 << 12; at < SIZE; at += 1 << 20) CHECK_AT(p[at] == 0, at);
        free(p);
        malloc_trim(0);
    }
    if (strict()) CHECK_AT(most < SIZE >> 10, most);
}

/* Seals an OS page in the middle of a block: from then on it cannot be unmapped, moved, or protected. */
static void seal_middle(char *block, size_t size) {
    enum { PAGE = 4096, MSEAL = 462 };
    char *at = (char *)(((uintptr_t)block + size / 2) & -(uintptr_t)PAGE);
    if (at > block && syscall(MSEAL, at, PAGE, 0) != 0) SKIP("mseal (Linux 6.10) is missing: errno %d", errno);
}

/* Blocks of which the program has sealed a part, and which it then resizes, frees, and allocates again: no byte is
   lost, and memory from calloc is zero. */
static void parts_sealed(void) {
    static const size_t sizes[] = {20000, 70000, 300000, 4 << 20, 40 << 20, (size_t)1200 << 20};
    for (int round = 0; round < 8; round++)
        for (int i = 0; i < 6; i++) {
            size_t size = sizes[i], step = size / 16;
            char *p = malloc(size), *wall = malloc(size); /* keeps it from growing in place */
            CHECK(p && wall);
            for (size_t at = 0; at < size; at += step) p[at] = (char)(at / step + 1);
            seal_middle(p, size);
            char *q = realloc(p, round % 2 ? size / 2 : size * 2);
            CHECK_AT(q, size);
            for (size_t at = 0; at < (round % 2 ? size / 2 : size); at += step) CHECK_AT(q[at] == (char)(at / step + 1), at);
            free(q);
            free(wall);
            if (round % 3 == 0) malloc_trim(0);
            if (round % 4 == 1) nap(150);
            q = calloc(1, size);
            CHECK_AT(q, size);
            for (size_t at = 0; at < size; at += step) CHECK_AT(q[at] == 0, at);
            memset(q, 1, size < 1 << 20 ? size : 1 << 20);
            free(q);
        }
}

/* The same for blocks at the end of what is committed, where writable memory is limited: what the system refuses to take
   back stays usable. */
static void end_sealed(void) {
    enum { COUNT = 20, SIZE = 2000000 };
    char *p[COUNT];
    struct rlimit limit = {256 << 20, 256 << 20};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (int i = 0; i < COUNT; i++) CHECK(p[i] = memset(malloc(SIZE), 1, SIZE));
    seal_middle(p[COUNT / 2], SIZE);
    for (int i = 0; i < COUNT; i++) free(p[i]);
    for (int round = 0; round < 3; round++) {
        malloc_trim(0);
        nap(100);
        for (int i = 0; i < COUNT; i++) CHECK_AT(p[i] = malloc(SIZE), i);
        for (int i = 0; i < COUNT; i++) memset(p[i], 1, SIZE);
        for (int i = 0; i < COUNT; i++) free(p[i]);
    }
}

/* At a limit, blocks of one chunk are made of long ones that the helper is just giving back. */
static void memory_on_its_way(void) {
    enum { LONG = 2 << 20, CHUNK = 1 << 16, PARTS = LONG / CHUNK };
    static char *taken[64], *parts[PARTS];
    limit_data();
    for (int round = 0; round < 4; round++) {
        size_t count = 0;
        while (count < 64 && (taken[count] = malloc(LONG))) fill(taken[count++], LONG, round);
        CHECK_AT(count > 8 && count < 64, count);
        while (malloc(CHUNK)) continue;
        free(taken[--count]);
        usleep((550 + 50 * round) * 1000);
        for (int i = 0; i < PARTS; i++) {
            parts[i] = malloc(CHUNK);
            CHECK_AT(parts[i], i);
        }
        for (int i = 0; i < PARTS; i++) free(parts[i]);
        while (count) free(taken[--count]);
    }
}

/* A block that is a mapping of its own, of which the program has made the front inaccessible, is freed where the system
   does not unmap it: neap does not touch it, and its memory goes back. */
static void inaccessible_and_not_unmapped(void) {
    const size_t size = (size_t)70 << 30;
    char *p = malloc(size);
    if (!p) SKIP("no 70 GiB of address space");
    memset(p, 1, 64 << 20);
    struct sock_filter code[] = {
        FILTER_NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 0, 3),
        /* The upper half of the length. */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    CHECK(mprotect(p, 1 << 20, PROT_NONE) == 0);
    free(p);
    CHECK_AT(status_kib("VmRSS:") < 32 << 10, status_kib("VmRSS:"));
}

static const struct test_case cases[] = {
    CASE(inaccessible_and_not_unmapped),
    CASE(questions_are_asked_again), CASE(parts_sealed), CASE(end_sealed),     CASE(memory_on_its_way),
    CASE(address_space_limited_later), CASE(posix_memalign_sets_errno),         CASE(program_comes_first),
    CASE(refused_memory_takes_no_addresses), CASE(shrinking_succeeds_without_memory),
};
TEST_MAIN(cases)
