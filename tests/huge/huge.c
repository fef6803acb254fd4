/* Option `huge` on the real system. Each case needs the option in the environment. */
#include "check.h"
#include "filter.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define HUGE (2 * MIB)

/* Whether the system gives huge pages where a program asks for them. */
static int has_huge(void) {
    char text[64] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0) return 0;
    close(fd);
    int disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
    return !strstr(text, "[never]") && (disabled == 0 || disabled & 2);
}

/* Bytes of huge pages in the mappings that overlap a range, and whether all of these are advised. */
static size_t huge_bytes(const void *p, size_t len, int *advised) {
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f);
    char line[512];
    size_t sum = 0, from, to;
    int inside = 0;
    *advised = 1;
    while (fgets(line, sizeof line, f)) {
        size_t kib;
        if (sscanf(line, "%zx-%zx ", &from, &to) == 2) inside = from < (size_t)p + len && to > (size_t)p;
        else if (inside && sscanf(line, "AnonHugePages: %zu", &kib) == 1) sum += kib * 1024;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0) *advised &= strstr(line, " hg") != NULL;
    }
    fclose(f);
    return sum;
}

static size_t resident(void) {
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%*u %zu", &pages) == 1);
    fclose(f);
    return pages * 4096;
}

static void thp(void) {
    if (!has_huge()) SKIP("no huge pages");
    int advised;
    size_t before = resident();
    char *p = malloc(32 * MIB);
    CHECK((size_t)p % HUGE == 0);
    CHECK(resident() < before + MIB);
    huge_bytes(p, 32 * MIB, &advised);
    CHECK(advised);
    memset(p, 1, 32 * MIB);
    CHECK(huge_bytes(p, 32 * MIB, &advised) > 0);
    p = realloc(p, 64 * MIB);
    for (size_t i = 0; i < 32 * MIB; i += 4096) CHECK_AT(p[i] == 1, i);
    CHECK((size_t)p % HUGE == 0);
    free(p);
    malloc_trim(0);
    CHECK(resident() < before + 4 * MIB);
    char *zero = calloc(1, 32 * MIB);
    for (size_t i = 0; i < 32 * MIB; i += 4096) CHECK_AT(zero[i] == 0, i);
    free(zero);
}

/* Small blocks that get the memory of freed large ones: where parts of huge pages went back, the system must not fill
 * the pages again. */
static void thp_reused(void) {
    if (!has_huge()) SKIP("no huge pages");
    enum { LARGE = 16, SMALL = 60000, KEEP = 32 };
    static char *large[LARGE], *small[SMALL];
    for (int i = 0; i < LARGE; i++) memset(large[i] = malloc(4 * MIB), 1, 4 * MIB);
    for (int i = 0; i < LARGE; i++) free(large[i]);
    for (int i = 0; i < SMALL; i++) memset(small[i] = malloc(1000), 2, 1000);
    for (int i = 0; i < SMALL; i++)
        if (i % KEEP) free(small[i]);
    for (int tenths = 0; tenths < 50 && resident() > 16 * MIB; tenths++) usleep(100000);
    CHECK(resident() < 16 * MIB);

    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f);
    char line[512];
    size_t from = 0, to = 0;
    int open_to_huge = 0;
    while (fgets(line, sizeof line, f)) {
        size_t start, end;
        if (sscanf(line, "%zx-%zx ", &start, &end) == 2) from = start, to = end;
        if (strncmp(line, "VmFlags:", 8) || !strstr(line, " hg")) continue;
        for (int i = 0; i < SMALL; i += KEEP) open_to_huge += (size_t)small[i] >= from && (size_t)small[i] < to;
    }
    fclose(f);
    CHECK_AT(open_to_huge < SMALL / KEEP / 20, open_to_huge);
    for (int i = 0; i < SMALL; i += KEEP) CHECK_AT(small[i][0] == 2 && small[i][999] == 2, i);
}

static void always(void) {
    if (!has_huge()) SKIP("no huge pages");
    int advised;
    static char *blocks[16000];
    for (int i = 0; i < 16000; i++) memset(blocks[i] = malloc(1000), 1, 1000);
    huge_bytes(blocks[12000], 1, &advised);
    CHECK(advised);
    size_t before = resident();
    for (int i = 0; i < 16000; i++) free(blocks[i]);
    malloc_trim(0);
    CHECK(resident() < before - 8 * MIB);
}

/* A block that realloc moves keeps its huge pages, wherever it began within one. */
static void moved(void) {
    if (!has_huge()) SKIP("no huge pages");
    enum { ROUNDS = 8 };
    for (size_t round = 0; round < ROUNDS; round++) {
        int advised;
        size_t size = (5 + round) * MIB;
        CHECK(malloc(100000));
        char *p = malloc(size), *behind = malloc(size);
        fill(p, size, round);
        memset(behind, 1, size);
        size_t before = huge_bytes(NULL, SIZE_MAX / 2, &advised), at = (size_t)p;
        CHECK(before > 0);
        p = realloc(p, 3 * size);
        CHECK_AT(p && (size_t)p != at && (size_t)p % HUGE == at % HUGE, p);
        /* The one at its end may be shared with what lies behind. */
        CHECK_AT(huge_bytes(NULL, SIZE_MAX / 2, &advised) + 2 * HUGE >= before, size);
        CHECK_FILL(p, size, round);
    }
}

/* The setting of the process and of its children. Linux has it from 6.18 on. */
static void advised(void) {
    int state = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
    CHECK(state == 0 || state == 3);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == state ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if (state == 0) {
        CHECK(prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0) == -1 && errno == EINVAL);
        SKIP("PR_THP_DISABLE_EXCEPT_ADVISED needs Linux 6.18");
    }
}

/* A process that was started without huge pages gets none. */
static void disabled(void) {
    CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
    char *p = malloc(32 * MIB);
    memset(p, 1, 32 * MIB);
    int advised;
    CHECK(huge_bytes(p, 32 * MIB, &advised) == 0 && !advised);
    free(p);
}

/* A filter that ends the process for advice about huge pages, as browsers set it. */
static void forbid_advice(void) {
    static struct sock_filter code[] = {
        FILTER_NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_madvise, 0, 6),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        FILTER_CALL(MADV_HUGEPAGE, SECCOMP_RET_KILL_PROCESS),
        FILTER_CALL(MADV_NOHUGEPAGE, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    static struct sock_fprog program = {sizeof code / sizeof *code, code};
    filter(&program);
}

/* Blocks of all kinds; large ones are moved. */
static void use_blocks(void) {
    enum { SMALL = 80000, LARGE = 8 };
    static char *small[SMALL], *large[LARGE];
    for (int i = 0; i < SMALL; i++) memset(small[i] = malloc(1000), 1, 1000);
    for (int i = 0; i < LARGE; i++) memset(large[i] = malloc(4 * MIB), 2, 4 * MIB);
    for (int i = 0; i < LARGE; i++) large[i] = realloc(large[i], 40 * MIB);
    for (int i = 0; i < LARGE; i++) {
        CHECK_AT(large[i][4 * MIB - 1] == 2, i);
        free(large[i]);
    }
    for (int i = 0; i < SMALL; i++) free(small[i]);
}

static void filtered(void) {
    use_blocks();
    forbid_advice();
    use_blocks();
    use_blocks();
    /* Long enough for the helper to examine memory that is in use. */
    char *p = malloc(40 * MIB);
    memset(p, 3, 40 * MIB);
    usleep(1700000);
    free(p);
}

/* Whether huge pages are given only where programs ask for them. */
static int is_madvise(void) {
    char text[64] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0) return 0;
    close(fd);
    return strstr(text, "[madvise]") != NULL;
}

/* Dense memory in use is put into huge pages while the program goes on; sparse memory is not. */
static void promoted(void) {
    if (!is_madvise()) SKIP("THP is not [madvise]");
    enum { DENSE = 48 * 1024 * 1024 };
    unsigned char *dense = malloc(DENSE), *sparse = malloc(DENSE);
    for (size_t i = 0; i < DENSE; i++) dense[i] = (unsigned char)(i * 7 + i / 4096);
    for (size_t i = 0; i < DENSE; i += 65536) sparse[i] = 1;
    int advised;
    size_t huge = 0, before = resident();
    for (int tenths = 0; tenths < 150 && huge < 16 * MIB; tenths++) {
        /* Promotion may take a share of the time that the program runs. */
        for (clock_t end = clock() + CLOCKS_PER_SEC / 10; clock() < end;)
            for (size_t i = 0; i < DENSE; i += 4099) dense[i] = (unsigned char)(i * 7 + i / 4096);
        huge = huge_bytes(dense, DENSE, &advised);
    }
    CHECK(huge >= 16 * MIB);
    for (size_t i = 0; i < DENSE; i++) CHECK_AT(dense[i] == (unsigned char)(i * 7 + i / 4096), i);
    CHECK(resident() < before + 2 * MIB);
    free(dense), free(sparse);
    malloc_trim(0);
    CHECK(resident() < before - 32 * MIB);
}

/* An idle program is not worth the time of promotion. */
static void rests(void) {
    if (!is_madvise()) SKIP("THP is not [madvise]");
    enum { DENSE = 240 * 1024 * 1024 };
    char *dense = malloc(DENSE);
    memset(dense, 1, DENSE);
    clock_t before = clock();
    sleep(4);
    /* The time may be exceeded by one huge page, which may take 5 ms. */
    CHECK_AT((clock() - before) * 4 < before, (size_t)(clock() - before));
    free(dense);
}

/* A program that grows and uses all its memory gets huge pages; and what it frees goes back. */
static void grown(void) {
    if (!is_madvise()) SKIP("THP is not [madvise]");
    enum { BLOCKS = 192000, KEEP = 400 };
    static char *block[BLOCKS];
    size_t before = resident();
    for (int i = 0; i < BLOCKS; i++) memset(block[i] = malloc(1000), i, 1000);
    int advised;
    /* Where huge pages are slow, there are few. */
    CHECK(huge_bytes(block[0], (size_t)1 << 40, &advised) >= HUGE);
    CHECK(!advised);
    CHECK(resident() < before + 200 * MIB);
    for (int i = 0; i < BLOCKS; i++)
        if (i % KEEP) free(block[i]);
    for (int tenths = 0; tenths < 30 && resident() > before + 8 * MIB; tenths++) usleep(100000);
    CHECK_AT(resident() < before + 8 * MIB, resident() - before);
    for (int i = 0; i < BLOCKS; i += KEEP) CHECK_AT(block[i][0] == (char)i && block[i][999] == (char)i, i);
}

/* Blocks that the program hardly touches must not become resident, however many it takes. */
static void sparse(void) {
    enum { BLOCKS = 2000 };
    static char *block[BLOCKS];
    size_t before = resident();
    for (int i = 0; i < BLOCKS; i++) (block[i] = malloc(60000))[0] = 1;
    CHECK_AT(resident() < before + 12 * MIB, resident() - before);
    for (int i = 0; i < BLOCKS; i++) free(block[i]);
}

/* Starts this program again without huge pages. */
static void without(void) {
    CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
    execl("/proc/self/exe", "huge", "disabled", (char *)NULL);
    CHECK(0);
}

/* A figure of the pool, from a line of /proc/meminfo. */
static size_t pool_number(const char *name) {
    static char text[8192]; /* malloc may fail here */
    int fd = open("/proc/meminfo", O_RDONLY);
    ssize_t len = read(fd, text, sizeof text - 1);
    CHECK(len > 0 && close(fd) == 0);
    text[len] = 0;
    char *line = strstr(text, name);
    CHECK(line);
    return strtoul(line + strlen(name) + 1, NULL, 10);
}

/* KernelPageSize in KiB of the mapping that a block starts in. */
static size_t page_size_at(const void *p) {
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f);
    char line[512];
    size_t from, to, size = 0;
    int inside = 0;
    while (size == 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%zx-%zx ", &from, &to) == 2) inside = from <= (size_t)p && (size_t)p < to;
        else if (inside) (void)!sscanf(line, "KernelPageSize: %zu", &size);
    }
    fclose(f);
    return size;
}

enum { POOL_BLOCKS = 4000 };
static struct { unsigned char *p; size_t size; unsigned char byte; } pool_block[POOL_BLOCKS];

static void pool_verify(int i) {
    for (size_t k = 0; k < pool_block[i].size; k++) CHECK_AT(pool_block[i].p[k] == pool_block[i].byte, k);
}

/* Blocks of 16 bytes to 3 MiB, which are replaced, resized and purged; at most 72 MiB at a time. */
static void pool_churn(int rounds) {
    unsigned long random = 88172645463325252ul;
    size_t live = 0;
    for (int round = 0; round < rounds; round++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int i = random % POOL_BLOCKS;
        size_t size = (size_t)16 << (random >> 20) % 17;
        size += (random >> 40) % size;
        if (pool_block[i].p) pool_verify(i);
        if (pool_block[i].p && (random >> 60) % 4 == 0 && live - pool_block[i].size + size < 72 * MIB) {
            unsigned char *p = realloc(pool_block[i].p, size);
            CHECK(p);
            size_t kept = size < pool_block[i].size ? size : pool_block[i].size;
            for (size_t k = 0; k < kept; k++) CHECK_AT(p[k] == pool_block[i].byte, k);
            live = live - pool_block[i].size + size;
            pool_block[i].p = p, pool_block[i].size = size;
            memset(p, pool_block[i].byte, size);
            continue;
        }
        free(pool_block[i].p);
        live -= pool_block[i].size;
        pool_block[i].p = NULL, pool_block[i].size = 0;
        if (live + size >= 72 * MIB) continue;
        int zero = random >> 63;
        unsigned char *p = zero ? calloc(1, size) : malloc(size);
        CHECK(p);
        for (size_t k = 0; zero && k < size; k++) CHECK_AT(p[k] == 0, k);
        pool_block[i].p = p, pool_block[i].size = size, pool_block[i].byte = (unsigned char)random | 1;
        memset(p, pool_block[i].byte, size);
        live += size;
        if (round % 1000 == 0) malloc_trim(0);
    }
    for (int i = 0; i < POOL_BLOCKS; i++) {
        pool_verify(i);
        free(pool_block[i].p);
        pool_block[i].p = NULL, pool_block[i].size = 0;
    }
}

static void pool_blocks(void) {
    size_t pages = pool_number("HugePages_Total");
    pool_churn(6000);
    malloc_trim(0);
    pool_churn(3000);
    if (pages > 0) CHECK(pool_number("HugePages_Free") < pages);
}

static void pool_all(void) {
    static char *blocks[60];
    for (int i = 0; i < 60; i++) {
        blocks[i] = malloc(MIB);
        CHECK(blocks[i] && page_size_at(blocks[i]) == 2048);
        memset(blocks[i], 1, MIB);
    }
    CHECK(page_size_at(malloc(40)) == 2048);
    for (int i = 0; i < 60; i++) free(blocks[i]);
}

/* The whole pool is used; then malloc, calloc, realloc and the aligned calls fail, and work again once memory is free.
   */
static void pool_strict(void) {
    static char *blocks[64];
    int n = 0;
    errno = 0;
    while (n < 64 && (blocks[n] = malloc(MIB))) memset(blocks[n++], 7, MIB);
    CHECK(n < 64 && errno == ENOMEM);
    CHECK(pool_number("HugePages_Free") == 0);
    CHECK(n + 4 >= (int)(2 * pool_number("HugePages_Total")));
    CHECK(!calloc(3, MIB) && !aligned_alloc(HUGE, 4 * MIB) && !malloc((size_t)40 << 30));
    if (n > 2) {
        CHECK(!realloc(blocks[0], 64 * MIB) && blocks[0][MIB - 1] == 7);
        free(blocks[--n]), free(blocks[--n]);
        char *p = calloc(1, MIB);
        CHECK(p);
        for (size_t i = 0; i < MIB; i++) CHECK_AT(p[i] == 0, i);
        free(p);
    }
    while (n > 0) {
        for (size_t i = 0; i < MIB; i++) CHECK_AT(blocks[n - 1][i] == 7, i);
        free(blocks[--n]);
    }
}

/* A block takes the last page of the pool, an allocation fails, and the pool is no longer used: memory that ends inside
 * a page of the pool must work. */
static void pool_toggle(void) {
    int (*set)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_DEFAULT, "neap_option_set");
    CHECK(set && malloc(40));
    size_t free_pages = pool_number("HugePages_Free");
    CHECK(free_pages > 2 && !malloc(2 * free_pages * HUGE));
    CHECK(pool_number("HugePages_Free") < free_pages);
    CHECK(set("huge", "off") == 0);
    for (size_t size = 300000; size <= 64 * MIB; size *= 2) {
        char *p = malloc(size);
        CHECK_AT(p, size);
        memset(p, 3, size);
        for (size_t i = 0; i < size; i++) CHECK_AT(p[i] == 3, i);
    }
}

/* Changes that the program makes, or tries, to its blocks do not cost pages of the pool. */
static void pool_changed(void) {
    size_t pages = pool_number("HugePages_Total");
    char *first = malloc(40);
    CHECK(first);
    for (int round = 0; round < 80; round++) {
        size_t align = round / 8 % 2 ? HUGE : 4096;
        unsigned char *p = aligned_alloc(align, 5 * MIB);
        CHECK_AT(p, round);
        for (size_t i = 0; i < 5 * MIB; i++) p[i] = (unsigned char)(i % 251);
        size_t kept = 5 * MIB;
        switch (round % 8) {
        case 0: CHECK(mlock(p, 5 * MIB) == 0); break;
        case 1: (void)!mprotect(p, 4 * MIB, PROT_READ); break;
        case 2: if (mprotect(p, 4 * MIB, PROT_NONE) == 0) kept = 0; break;
        case 3: (void)!madvise(p, 4 * MIB, MADV_DONTFORK); break;
        case 4: if (madvise(p, 4 * MIB, MADV_DONTNEED) == 0) kept = 0; break;
        case 5: if (munmap(p, 2 * MIB) == 0) kept = 0; break;
        case 6: (void)!mprotect(p + 4096, 4096, PROT_NONE); break;
        case 7: (void)!madvise(p, 5 * MIB, MADV_WIPEONFORK); break;
        }
        for (size_t i = 0; i < kept; i++) CHECK_AT(p[i] == (unsigned char)(i % 251), i);
        free(p);
        p = calloc(1, 5 * MIB);
        CHECK_AT(p, round);
        for (size_t i = 0; i < 5 * MIB; i++) CHECK_AT(p[i] == 0, i);
        memset(p, 1, 5 * MIB);
        CHECK(page_size_at(p) == 2048);
        free(p);
    }
    CHECK(pool_number("HugePages_Total") == pages);
}

/* What the program frees by advice reads as zero, also a part of a page of the pool; and the page stays the program's.
   */
static void pool_advised_away(void) {
    size_t pages = pool_number("HugePages_Total");
    size_t borders[][2] = {{0, 4096}, {4096, 4096}, {4096, 3 * MIB}, {0, 2 * MIB}, {2 * MIB, 3 * MIB + 4096}, {0, 6 * MIB}};
    unsigned char *p = aligned_alloc(HUGE, 6 * MIB);
    CHECK(p && page_size_at(p) == 2048);
    size_t free_pages = pool_number("HugePages_Free");
    for (size_t i = 0; i < sizeof borders / sizeof *borders; i++) {
        size_t from = borders[i][0], len = borders[i][1];
        memset(p, 7, 6 * MIB);
        CHECK_AT(madvise(p + from, len, MADV_DONTNEED) == 0, i);
        for (size_t at = 0; at < 6 * MIB; at++) CHECK_AT(p[at] == (at - from < len ? 0 : 7), at);
        CHECK_AT(pool_number("HugePages_Free") == free_pages, i);
    }
    CHECK(madvise(p + 1, 4096, MADV_DONTNEED) == -1 && errno == EINVAL);
    /* In whole pages that cannot be written, the kernel drops the contents. */
    CHECK(mprotect(p, 2 * MIB, PROT_READ) == 0 && madvise(p, 2 * MIB, MADV_DONTNEED) == 0);
    CHECK(mprotect(p, 2 * MIB, PROT_READ | PROT_WRITE) == 0 && p[0] == 0 && p[2 * MIB - 1] == 0);
    free(p);
    CHECK(pool_number("HugePages_Total") == pages);
}

/* The program unmaps pages of the pool when the pool has no others: small pages replace them. The program may change
   parts of these, and the next blocks must not get the changes. */
static void pool_gone_changed(void) {
    enum { BLOCKS = 3, SMALL = 24 };
    unsigned char *p[BLOCKS], *q[SMALL];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(p[i] = aligned_alloc(HUGE, 6 * MIB));
        memset(p[i], 1, 6 * MIB);
    }
    FILE *f = fopen("/proc/sys/vm/nr_hugepages", "w");
    CHECK(f && fprintf(f, "0\n") > 0 && fclose(f) == 0);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(munmap(p[i], 6 * MIB) == 0);
        free(p[i]);
    }
    int changed = 0;
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < SMALL; i++) {
            CHECK(q[i] = calloc(1, 300000 + 70000 * (size_t)(i % 4)));
            for (size_t k = 0; k < 300000; k++) CHECK_AT(q[i][k] == 0, k);
            memset(q[i], 1, 300000);
            unsigned char *page = (unsigned char *)(((uintptr_t)q[i] + 8191) & ~(uintptr_t)4095);
            switch ((round + i) % 4) {
            case 0: changed += mprotect(page, 4096, PROT_NONE) == 0; break;
            case 1: changed += mprotect(page, 4096, PROT_READ) == 0; break;
            case 2: changed += munmap(page, 4096) == 0; break;
            }
        }
        for (int i = 0; i < SMALL; i++) free(q[i]);
    }
    CHECK(changed > 0);
}

static void pool_taken(void) {
    char *p = malloc(32 * MIB);
    CHECK(p && page_size_at(p + MIB) == 2048);
    FILE *f = fopen("/proc/sys/vm/nr_hugepages", "w");
    CHECK(f && fputs("0", f) >= 0 && fclose(f) == 0);
    memset(p, 3, 32 * MIB);
    for (size_t i = 0; i < 32 * MIB; i++) CHECK_AT(p[i] == 3, i);
    free(p);
    p = calloc(1, 32 * MIB);
    for (size_t i = 0; i < 32 * MIB; i++) CHECK_AT(p[i] == 0, i);
    free(p);
}

static void pool_fork(void) {
    char *p = malloc(16 * MIB);
    memset(p, 3, 16 * MIB);
    pid_t child = fork();
    CHECK(child >= 0);
    memset(p, child ? 4 : 5, 8 * MIB);
    for (size_t i = 0; i < 16 * MIB; i++) CHECK_AT(p[i] == (i >= 8 * MIB ? 3 : child ? 4 : 5), i);
    pool_churn(500);
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void *until_ended(void *end) {
    free(malloc(100));
    while (!*(volatile int *)end) usleep(1000);
    return NULL;
}

/* The pool has no page left, and there are many heaps. A child that calls exec without touching a block needs none. */
static void pool_exec(void) {
    enum { THREADS = 100 };
    int end = 0;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, until_ended, &end) == 0);
    static char *blocks[200];
    int n = 0;
    while (n < 200 && (blocks[n] = malloc(MIB))) memset(blocks[n++], 7, MIB);
    CHECK(n < 200 && pool_number("HugePages_Free") == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    end = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    while (n > 0) free(blocks[--n]);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {CASE(thp), CASE(thp_reused), CASE(always), CASE(moved), CASE(advised), CASE(disabled), CASE(without),
                                             CASE(filtered), CASE(promoted), CASE(rests), CASE(grown), CASE(sparse), CASE(pool_blocks), CASE(pool_all),
                                             CASE(pool_strict), CASE(pool_taken), CASE(pool_toggle), CASE(pool_fork),
                                             CASE(pool_changed), CASE(pool_gone_changed), CASE(pool_advised_away), CASE(pool_exec)};
    return run_cases(argc, argv, cases, sizeof cases / sizeof *cases);
}
