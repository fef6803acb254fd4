/* Ranges in pages of a chosen size, through the C functions. crates/ranges tests their effects. */
#include "check.h"
#include "../../include/neap.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)

static struct neap_range alloc(size_t bytes, size_t page, uint32_t flags) {
    struct neap_range range = {.size = sizeof range};
    CHECK_AT(neap_range_alloc(&range, bytes, page, flags) == NEAP_OK, page);
    CHECK(range.start && range.bytes >= bytes && range.bytes % range.page_size == 0 && range.size == sizeof range);
    return range;
}
static void alloc_and_free(void) {
    errno = 4711;
    struct neap_range small = alloc(5000, 0, 0), same = alloc(5000, 4096, NEAP_STRICT), huge = alloc(3 * MIB, 2 * MIB, 0);
    CHECK(small.kind == NEAP_PAGES_SMALL && small.why_smaller == NEAP_OK && small.bytes == 2 * small.page_size);
    CHECK(same.kind == NEAP_PAGES_SMALL);
    if (huge.why_smaller == NEAP_OK) CHECK(huge.kind == NEAP_PAGES_TRANSPARENT && huge.bytes == 4 * MIB);
    for (size_t i = 0; i < huge.bytes; i++) CHECK_AT(((char *)huge.start)[i] == 0, i);
    memset(huge.start, 1, huge.bytes);
    /* A pool that no machine has: the next smaller pages, or none. */
    struct neap_range pool = alloc(3 * MIB, (size_t)1 << 33, NEAP_HUGETLB);
    CHECK(pool.why_smaller != NEAP_OK && pool.bytes < 8 * MIB);
    unsigned char *at = small.start;
    struct neap_range *all[] = {&small, &same, &huge, &pool};
    for (int i = 0; i < 4; i++) {
        neap_range_free(all[i]);
        CHECK(all[i]->start == NULL && all[i]->size == sizeof small);
        neap_range_free(all[i]);
    }
    unsigned char state;
    CHECK(mincore(at, 4096, &state) == -1);
    neap_range_free(NULL);
    errno = 4711;
    CHECK(neap_range_alloc(&pool, 3 * MIB, (size_t)1 << 33, NEAP_HUGETLB | NEAP_STRICT) == NEAP_NO_SUCH_PAGES);
    CHECK(pool.start == NULL && errno == 4711);
    CHECK(neap_range_alloc(&pool, 0, 0, 0) == NEAP_BAD_VALUE && neap_range_alloc(&pool, 1, 0, 1 << 30) == NEAP_BAD_VALUE);
    CHECK(neap_range_alloc(&pool, 1, 12345, 0) == NEAP_BAD_VALUE);
    CHECK(neap_range_alloc(&pool, SIZE_MAX / 4, 0, 0) == NEAP_NO_MEMORY);
    pool.size = 8, pool.start = &pool;
    CHECK(neap_range_alloc(&pool, 1, 0, 0) == NEAP_TOO_SHORT && neap_range_alloc(NULL, 1, 0, 0) == NEAP_TOO_SHORT);
    CHECK(pool.start == &pool);
    for (size_t size = 16; size < sizeof pool; size++) {
        pool.size = size, pool.start = &pool, pool.bytes = 4711;
        CHECK_AT(neap_range_alloc(&pool, 1, 0, 0) == NEAP_TOO_SHORT && !pool.start && pool.bytes == 4711, size);
        pool.start = &pool;
        CHECK_AT(neap_range_attach(&pool, -1) == NEAP_TOO_SHORT && !pool.start, size);
    }
    /* A structure of a newer header. */
    struct { struct neap_range r; uint64_t more; } newer = {.r = {.size = sizeof newer}, .more = 4711};
    CHECK(neap_range_alloc(&newer.r, 1, 0, 0) == NEAP_OK && newer.more == 4711 && newer.r.size == sizeof newer);
    neap_range_free(&newer.r);
    CHECK(newer.more == 4711 && errno == 4711);
}
static int calls, stop_at;
static pthread_t caller;
static int progress(size_t done, size_t total, void *context) {
    CHECK(pthread_equal(pthread_self(), caller) && context == &calls && done <= total);
    return ++calls == stop_at;
}
static void prefault(void) {
    caller = pthread_self();
    for (unsigned threads = 0; threads < 4; threads++) {
        struct neap_range range = alloc(32 * MIB, 0, 0);
        struct neap_prefault_options how = {
            .size = sizeof how, .threads = threads == 3 ? NEAP_ALL_PROCESSORS : threads, .access = NEAP_READ};
        struct neap_resident got = {.size = sizeof got};
        errno = 4711;
        CHECK(neap_prefault(range.start, range.bytes, &how) == NEAP_OK && how.done == range.bytes);
        CHECK(neap_resident_get(range.start, range.bytes, &got) == NEAP_OK && got.zero == range.bytes && got.resident == 0);
        how.access = NEAP_WRITE, how.progress = progress, how.context = &calls, calls = 0, stop_at = 0;
        CHECK(neap_prefault(range.start, range.bytes, &how) == NEAP_OK && calls > 0 && how.done == range.bytes);
        CHECK(neap_resident_get(range.start, range.bytes, &got) == NEAP_OK && got.resident == range.bytes);
        neap_range_free(&range);
        range = alloc(32 * MIB, 0, 0), calls = 0, stop_at = 1;
        /* Another thread may have finished the rest before this one is asked. */
        int result = neap_prefault(range.start, range.bytes, &how);
        if (result != NEAP_OK || threads < 2) CHECK(result == NEAP_CANCELLED && how.done < range.bytes);
        CHECK(calls == 1);
        CHECK(errno == 4711);
        neap_range_free(&range);
    }
    struct neap_range range = alloc(MIB, 0, 0);
    CHECK(neap_prefault(range.start, range.bytes, NULL) == NEAP_OK);
    /* A structure of an older header, without the callback. */
    struct neap_prefault_options old = {.size = offsetof(struct neap_prefault_options, progress), .progress = (void *)1};
    CHECK(neap_prefault(range.start, range.bytes, &old) == NEAP_OK && old.done == 0);
    /* One that ends within the callback, and one that ends within the result. */
    old.size += 4;
    CHECK(neap_prefault(range.start, range.bytes, &old) == NEAP_OK && old.done == 0);
    old.size = offsetof(struct neap_prefault_options, done) + 4, old.progress = NULL, old.done = 4711;
    CHECK(neap_prefault(range.start, range.bytes, &old) == NEAP_OK && old.done == 4711);
    old.size = 3;
    CHECK(neap_prefault(range.start, range.bytes, &old) == NEAP_TOO_SHORT);
    old.size = sizeof old, old.progress = NULL, old.access = 9;
    CHECK(neap_prefault(range.start, range.bytes, &old) == NEAP_BAD_VALUE);
    CHECK(mprotect(range.start, 4096, PROT_NONE) == 0);
    CHECK(neap_prefault(range.start, range.bytes, NULL) == NEAP_INACCESSIBLE);
    CHECK(neap_prefault((void *)4096, 4096, NULL) == NEAP_INACCESSIBLE);
    neap_range_free(&range);
}
/* Blocks of malloc can be prefaulted, advised and queried as well. */
static void blocks_of_malloc(void) {
    char *block = calloc(1, 8 * MIB);
    struct neap_resident got = {.size = sizeof got};
    CHECK(neap_resident_get(block, 8 * MIB, &got) == NEAP_OK && got.resident < MIB);
    CHECK(neap_prefault(block, 8 * MIB, NULL) == NEAP_OK);
    CHECK(neap_resident_get(block, 8 * MIB, &got) == NEAP_OK && got.resident >= 8 * MIB && got.bytes >= got.resident);
    memset(block, 1, 8 * MIB);
    CHECK(neap_advise(block, 8 * MIB, NEAP_ADVICE_COLD) == NEAP_OK);
    CHECK(neap_advise(block, 8 * MIB, 0) == NEAP_BAD_VALUE && neap_advise(block, 8 * MIB, 99) == NEAP_BAD_VALUE);
    CHECK(neap_advise(block + 1, 4096, NEAP_ADVICE_FREE) == NEAP_OK);
    for (size_t i = 0; i < 8 * MIB; i++) CHECK_AT(block[i] == 1, i);
    CHECK(neap_advise(block, 8 * MIB, NEAP_ADVICE_FREE) == NEAP_OK);
    CHECK(neap_resident_get(block, 8 * MIB, &got) == NEAP_OK && got.resident <= 8192);
    free(block);
    {
        struct neap_resident old = {.size = offsetof(struct neap_resident, swapped), .swapped = 4711};
        char stack[100] = {1};
        CHECK(neap_resident_get(stack, sizeof stack, &old) == NEAP_OK && old.resident > 0 && old.swapped == 4711);
        CHECK(old.size == offsetof(struct neap_resident, swapped));
        old.size += 4;
        CHECK(neap_resident_get(stack, sizeof stack, &old) == NEAP_OK && old.swapped == 4711);
        CHECK(old.size == offsetof(struct neap_resident, swapped));
        old.size = 8;
        CHECK(neap_resident_get(stack, sizeof stack, &old) == NEAP_TOO_SHORT);
        CHECK(neap_resident_get(stack, 0, &got) == NEAP_BAD_VALUE);
    }
}
static void texts(void) {
    for (int result = 0; result < 20; result++) {
        const char *text = neap_result_text(result);
        CHECK_AT(text && *text && strcmp(text, neap_result_text(99)) != 0, result);
    }
    CHECK(strstr(neap_result_text(NEAP_POOL_SHORT), "pool"));
}
/* The child of a fork has no private range, and the same shared one. */
static void after_fork(void) {
    struct neap_range own = alloc(MIB, 0, 0), both = alloc(MIB, 0, NEAP_SHARED);
    pid_t child = fork();
    if (child == 0) {
        unsigned char state;
        *(volatile char *)both.start = 7;
        _exit(mincore(own.start, 4096, &state) == 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(*(volatile char *)both.start == 7);
    neap_range_free(&own);
    neap_range_free(&both);
}
/* A cancelled thread ends after the call has returned, when the call's threads have ended. */
static atomic_int returned;
static int cancel(size_t done, size_t total, void *context) {
    (void)done, (void)total, (void)context;
    CHECK(pthread_cancel(pthread_self()) == 0);
    return 0;
}
static void *prefault_and_test(void *start) {
    struct neap_prefault_options how = {.size = sizeof how, .threads = 2, .progress = cancel};
    CHECK(neap_prefault(start, 32 * MIB, &how) == NEAP_OK && how.done == 32 * MIB);
    atomic_store(&returned, 1);
    pthread_testcancel();
    return NULL;
}
static void cancelled(void) {
    struct neap_range range = alloc(32 * MIB, 0, 0);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, prefault_and_test, range.start) == 0 && pthread_join(thread, &result) == 0);
    CHECK(atomic_load(&returned) && result == PTHREAD_CANCELED);
    neap_range_free(&range);
}
/* Signals of the program reach its own threads only, while others prefault. */
static atomic_int wrong;
static void handler(int signal) {
    (void)signal;
    if (!pthread_equal(pthread_self(), caller)) atomic_store(&wrong, 1);
}
static void signals(void) {
    caller = pthread_self();
    signal(SIGALRM, handler);
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        struct neap_range range = alloc(16 * MIB, 0, 0);
        struct neap_prefault_options how = {.size = sizeof how, .threads = 3};
        CHECK(neap_prefault(range.start, range.bytes, &how) == NEAP_OK);
        neap_range_free(&range);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(!atomic_load(&wrong));
}
/* With a mount of hugetlbfs and four pages in the pool. */
static void shared(void) {
    char path[256];
    errno = 4711;
    CHECK(neap_hugetlb_mount(2 * MIB, path, sizeof path) == NEAP_OK && path[0] == '/');
    CHECK(neap_hugetlb_mount(2 * MIB, path, 3) == NEAP_TOO_SHORT && path[0] == 0);
    CHECK(neap_hugetlb_mount(2 * MIB, NULL, 0) == NEAP_TOO_SHORT);
    CHECK(neap_hugetlb_mount(MIB, path, sizeof path) == NEAP_NO_MOUNT);
    struct neap_range own = {.size = sizeof own}, other = {.size = sizeof other};
    CHECK(neap_range_open(&own, "table", 0, 2 * MIB, 0) == NEAP_NOT_FOUND && own.start == NULL && own.file == -1);
    CHECK(neap_range_open(&own, NULL, MIB, 2 * MIB, 0) == NEAP_BAD_VALUE);
    CHECK(neap_range_open(&own, "table", MIB, 2 * MIB, NEAP_STRICT) == NEAP_BAD_VALUE);
    CHECK(neap_range_open(&own, "table", 3 * MIB, 2 * MIB, 0) == NEAP_OK && own.start && own.bytes == 4 * MIB);
    CHECK(own.is_new == 1 && own.kind == NEAP_PAGES_HUGETLB && own.file >= 0 && own.segment == -1);
    CHECK(strncmp(own.path, path, strlen(path)) == 0 && strlen(own.path) > strlen(path) && access(own.path, F_OK) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(neap_range_open(&other, "table", 0, 2 * MIB, NEAP_LAZY) == NEAP_OK && !other.is_new && other.bytes == 4 * MIB);
        *(volatile char *)other.start = 7;
        neap_range_free(&other);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(*(volatile char *)own.start == 7 && access(own.path, F_OK) == 0 && neap_range_sweep() == 0);
    memcpy(path, own.path, sizeof path);
    neap_range_free(&own);
    CHECK(access(path, F_OK) == -1 && own.start == NULL && own.file == -1 && own.path[0] == 0);
    child = fork();
    if (child == 0) {
        CHECK(neap_range_open(&other, "table", MIB, 2 * MIB, 0) == NEAP_OK);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(access(path, F_OK) == 0 && neap_range_sweep() == 1 && access(path, F_OK) == -1);
    errno = 4711;
    CHECK(neap_range_segment(&own, 100 * MIB, 2 * MIB, 0) == NEAP_POOL_SHORT);
    CHECK(neap_range_segment(&own, 3 * MIB, 2 * MIB, 0) == NEAP_OK && own.segment >= 0 && own.file == -1);
    CHECK(neap_range_attach(&other, own.segment) == NEAP_OK && other.start != own.start && other.bytes == 4 * MIB);
    ((volatile char *)other.start)[5] = 5;
    CHECK(((volatile char *)own.start)[5] == 5);
    int segment = own.segment;
    neap_range_free(&own);
    CHECK(((volatile char *)other.start)[5] == 5);
    neap_range_free(&other);
    CHECK(neap_range_attach(&other, segment) == NEAP_NOT_FOUND && other.start == NULL && errno == 4711);
}
static const struct test_case cases[] = {CASE(alloc_and_free), CASE(prefault), CASE(blocks_of_malloc), CASE(texts),
                                         CASE(after_fork), CASE(cancelled), CASE(signals),
                                         CASE(shared)};
TEST_MAIN(cases)
