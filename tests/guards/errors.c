/* Each case makes one error on a block, which must be guarded if the case requires it. It prints the block and the
 * functions that allocate, free and use it. Argument 2: `ignore` goes on until the end. */
#include "check.h"
#include <malloc.h>

#define SITE __attribute__((noinline, noclone))
static char *volatile p;

SITE static void allocates(size_t size) {
    p = malloc(size);
    CHECK(p);
    dprintf(1, "%p %p ", (void *)p, (void *)allocates);
}
SITE static void frees(void *block) {
    free(block);
    __asm__ volatile("");
}
SITE static void uses(char *at) {
    *(volatile char *)at = 1;
    __asm__ volatile("");
}
SITE static int reads(char *at) {
    int value = *(volatile char *)at;
    __asm__ volatile("");
    return value;
}
static void begin(size_t size) {
    allocates(size);
    dprintf(1, "%p %p %p\n", (void *)frees, (void *)uses, (void *)reads);
    memset(p, 7, size);
}

static void use_after_free(void) { begin(64), frees(p), uses(p + 8); }
static void read_after_free(void) { begin(64), frees(p), reads(p + 63); }
static void overrun(void) { begin(64), uses(p + 64), frees(p); }
static void overrun_in_slack(void) { begin(61), uses(p + 61), frees(p); }
static void underrun(void) { begin(64), uses(p - 1), frees(p); }
static void double_free(void) { begin(64), frees(p), frees(p); }
static void free_inside(void) { begin(64), frees(p + 16); }
static void realloc_freed(void) { begin(64), frees(p), (void)!realloc(p, 1000); }
static void usable_freed(void) { begin(64), frees(p), (void)malloc_usable_size(p); }
static void *frees_it(void *block) {
    frees(block);
    return NULL;
}
static void freed_by_thread(void) {
    pthread_t thread;
    begin(64);
    CHECK(!pthread_create(&thread, NULL, frees_it, p));
    CHECK(!pthread_join(thread, NULL));
    uses(p);
}
/* A bug that appears where memory is reused at once: without a guard the second free frees another block. */
static void double_free_after_reuse(void) {
    void *kept[20];
    begin(64);
    frees(p);
    for (int i = 0; i < 20; i++) kept[i] = malloc(64);
    frees(p);
    for (int i = 0; i < 20; i++) free(kept[i]);
}
static void many_errors(void) {
    for (int i = 0; i < 3; i++) {
        begin(64);
        frees(p);
        uses(p), uses(p + 1), reads(p);
        frees(p);
    }
}
static void *uses_it(void *block) {
    for (int i = 0; i < 100; i++) uses((char *)block + i % 64);
    return NULL;
}
static void used_by_threads(void) {
    pthread_t threads[8];
    begin(64);
    frees(p);
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, uses_it, p));
    for (int i = 0; i < 8; i++) CHECK(!pthread_join(threads[i], NULL));
}

static const struct test_case cases[] = {
    CASE(use_after_free), CASE(read_after_free), CASE(overrun), CASE(overrun_in_slack), CASE(underrun),
    CASE(double_free), CASE(free_inside), CASE(realloc_freed), CASE(usable_freed), CASE(freed_by_thread),
    CASE(double_free_after_reuse), CASE(many_errors), CASE(used_by_threads),
};
TEST_MAIN(cases)
