/* Inaccessible OS pages stay so while other threads commit memory: with harden=on the guard behind each block of whole
   OS pages, and pages that the program itself protects in its blocks. */
#include "trust.h"
#include <errno.h>
#include <sys/syscall.h>

enum { THREADS = 4, BLOCKS = 3000 };
static char *block[THREADS][BLOCKS];

static void *allocate(void *arg) {
    long id = (long)arg;
    for (int i = 0; i < BLOCKS; i++) {
        block[id][i] = malloc(60000 + (size_t)(i % 7) * 60000);
        if (!block[id][i]) return NULL;
        block[id][i][0] = 1;
    }
    return NULL;
}

/* Whether the kernel can read the byte. */
static int readable(const char *at) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    int could = write(ends[1], at, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return could;
}

/* A process of its own for each trial, because only growth is of interest. */
static void trial(void) {
    pthread_t t[THREADS];
    long all = 0, open = 0;
    for (long i = 0; i < THREADS; i++) t[i] = started(allocate, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int k = 0; k < THREADS; k++)
        for (int i = 0; i < BLOCKS; i++) {
            if (!block[k][i]) continue;
            all++;
            open += readable(block[k][i] + ((malloc_usable_size(block[k][i]) + 4095) & ~(size_t)4095));
        }
    if (open) dprintf(2, "%ld of %ld blocks have no guard\n", open, all);
    if (strict()) CHECK_AT(open == 0, open);
}

enum { PAGE = 4096 };

static void *protect(void *arg) {
    long id = (long)arg;
    for (int i = 0; i < BLOCKS; i++) {
        char *p = memalign(65536, 60000 + (size_t)(i % 7) * 60000);
        if (!p) return NULL;
        p[0] = 1;
        CHECK(mprotect(p + 8 * PAGE, PAGE, PROT_NONE) == 0);
        block[id][i] = p;
    }
    return NULL;
}

static void protected_trial(void) {
    pthread_t t[THREADS];
    long all = 0, open = 0;
    for (long i = 0; i < THREADS; i++) t[i] = started(protect, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int k = 0; k < THREADS; k++)
        for (int i = 0; i < BLOCKS; i++) {
            if (!block[k][i]) continue;
            all++;
            open += readable(block[k][i] + 8 * PAGE);
        }
    CHECK_AT(all > 0 && open == 0, open);
}

/* A program may make an OS page of its block inaccessible, or executable. */
static void programs_pages_stay(void) { in_children(protected_trial, trial_ms(4000), 0); }

static void guards_stay(void) { in_children(trial, trial_ms(4000), 0); }

enum { CHANGED = 24, CHANGED_SIZE = 5 * 65536 };

/* A program's changes of an OS page, and the call used. */
enum change { PROTECTED, PROTECTED_BY_NUMBER, GUARDED, NOT_COPIED, WIPED, LOCKED, FILED, MOVED_INTO, MOVED_AWAY, UNMAPPED, CHANGES };

/* One OS page, which holds zero. */
static int file = -1;
static void *of_file(void *at, int fixed) { return mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, file, 0); }

static int changed(enum change how, char *page) {
    switch (how) {
    case FILED: return of_file(page, MAP_FIXED) == page ? 0 : -1;
    case MOVED_INTO: return mremap(of_file(NULL, 0), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page) == page ? 0 : -1;
    case MOVED_AWAY: return mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, of_file(NULL, 0)) != page ? 0 : -1;
    case UNMAPPED: return munmap(page, PAGE);
    case PROTECTED: return mprotect(page, PAGE, PROT_NONE);
    case PROTECTED_BY_NUMBER: return (int)syscall(SYS_mprotect, page, PAGE, PROT_READ);
    case GUARDED: return madvise(page, PAGE, 102);
    case NOT_COPIED: return madvise(page, PAGE, MADV_DONTFORK);
    case WIPED: return madvise(page, PAGE, MADV_WIPEONFORK);
    default: return mlock(page, PAGE);
    }
}

/* A child of fork must find its parent's bytes. */
static void read_in_child(char **of, int count) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < count; i++)
            for (int k = 0; k < CHANGED_SIZE; k += PAGE) CHECK_AT(of[i][k] == 7, k);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_AT(status == 0, status);
}

/* Changes one OS page of each block, cuts the block before that page if `shorter`, frees it, and uses the memory again.
   */
static void changed_and_freed(enum change how, int at, int shorter) {
    static char *p[2 * CHANGED];
    for (int i = 0; i < CHANGED; i++) {
        p[i] = aligned_alloc(PAGE, CHANGED_SIZE);
        CHECK(p[i]);
        memset(p[i], 1, CHANGED_SIZE);
        if (changed(how, p[i] + at) != 0) {
            /* Guards need Linux 6.13, MADV_WIPEONFORK 4.14; the amount of locked memory is limited. */
            CHECK_AT(errno == EINVAL || how == LOCKED, errno);
            return;
        }
    }
    /* Some shrink first, and make room for the others' next owners. */
    for (int i = 0; shorter && i < CHANGED; i++) {
        p[i] = realloc(p[i], 65536);
        CHECK(p[i] && p[i][0] == 1);
    }
    if (!shorter)
        for (int i = 0; i < CHANGED; i++) free(p[i]);
    int first = shorter ? CHANGED : 0;
    if (how == LOCKED) CHECK_AT(status_kib("VmLck:") == 0, status_kib("VmLck:"));
    for (int i = first; i < 2 * CHANGED; i++) {
        p[i] = malloc(CHANGED_SIZE);
        CHECK(p[i]);
        memset(p[i], 7, CHANGED_SIZE);
    }
    read_in_child(p + first, 2 * CHANGED - first);
    for (int i = 0; i < 2 * CHANGED; i++) free(p[i]);
    char byte = 1;
    CHECK(pread(file, &byte, 1, 0) == 1 && byte == 0);
}

/* A program's changes of OS pages of a large block must not affect the next owner, wherever in the block they are. */
static void freed_blocks_are_as_new(void) {
    static const int places[] = {0, 2 * 65536 + 3 * PAGE, CHANGED_SIZE - PAGE};
    file = memfd_create("file", 0);
    CHECK(file >= 0 && ftruncate(file, PAGE) == 0);
    for (int how = 0; how < CHANGES; how++)
        for (int i = 0; i < 3; i++) changed_and_freed(how, places[i], 0);
    for (int how = 0; how < CHANGES; how++) changed_and_freed(how, places[1], 1);
}

/* A block whose end the program protects, that shrinks below that end, and grows again. */
static void ends_grow_again(void) {
    for (int cut = PAGE; cut < 3 * 65536; cut += 3 * PAGE) {
        char *p = aligned_alloc(PAGE, CHANGED_SIZE);
        CHECK(p);
        memset(p, 3, CHANGED_SIZE);
        CHECK(mprotect(p + CHANGED_SIZE - cut, PAGE, cut & 2 * PAGE ? PROT_NONE : PROT_READ) == 0);
        p = realloc(p, (size_t)(CHANGED_SIZE - cut));
        CHECK(p);
        p = realloc(p, CHANGED_SIZE);
        CHECK(p);
        memset(p + CHANGED_SIZE - cut, 4, (size_t)cut);
        for (int k = 0; k < CHANGED_SIZE; k++) CHECK_AT(p[k] == (k < CHANGED_SIZE - cut ? 3 : 4), k);
        free(p);
    }
}

enum { REFUSED = 3000, SPARE = 150000 };

/* In a process with the maximum number of mappings a block can be neither unmapped nor changed: it stays usable. */
static void freed_at_the_limit_of_mappings(void) {
    char *p = malloc(16 * CHANGED_SIZE);
    CHECK(p);
    free(p);
    char *spare = mmap(NULL, (size_t)SPARE * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(spare != MAP_FAILED);
    long used = 0;
    while (used < SPARE && mprotect(spare + used * PAGE, PAGE, PROT_READ) == 0) used += 2;
    if (used >= SPARE) SKIP("vm.max_map_count is too many to use up");
    long before = status_kib("VmData:");
    for (int i = 0; i < REFUSED; i++) {
        p = aligned_alloc(PAGE, CHANGED_SIZE);
        CHECK_AT(p, i);
        p[0] = 1;
        if (mprotect(p + PAGE, PAGE, PROT_NONE) == 0) CHECK(mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
        free(p);
    }
    long more = status_kib("VmData:") - before;
    CHECK_AT(more < REFUSED * (CHANGED_SIZE / 1024) / 10, more);
}

static const struct test_case cases[] = {CASE(guards_stay), CASE(programs_pages_stay), CASE(freed_blocks_are_as_new),
                                         CASE(ends_grow_again), CASE(freed_at_the_limit_of_mappings)};
TEST_MAIN(cases)
