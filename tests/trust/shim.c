/* A program's own memalign on top of posix_memalign, for systems that lack one: it calls itself for ever if the
   library's posix_memalign goes through the name memalign. */
#include "trust.h"

void *memalign(size_t alignment, size_t size) {
    void *p;
    return posix_memalign(&p, alignment < sizeof p ? sizeof p : alignment, size) ? NULL : p;
}

static void memalign_over_posix(void) {
    for (size_t size = 1; size < 1 << 20; size *= 3) {
        char *p = memalign(64, size);
        CHECK_AT(p && (uintptr_t)p % 64 == 0, size);
        memset(p, 1, size);
        free(p);
    }
}

static const struct test_case cases[] = {CASE(memalign_over_posix)};
TEST_MAIN(cases)
