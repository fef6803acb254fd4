/* Calls all of glibc's controls, as even restricted programs may. */
#ifndef NEAP_TESTS_CONTROLS_H
#define NEAP_TESTS_CONTROLS_H

#include "purge.h"
#include <malloc.h>

/* Checks M_PERTURB: new blocks are filled with the complement, freed ones with the byte, calloc's not at all. */
static inline void check_fills(unsigned char byte) {
    for (size_t size = 24; size < 3000000; size = size * 3 + 8) {
        unsigned char *p = malloc(size);
        CHECK_AT(p && p[0] == (byte ^ 0xff) && p[size / 2] == (byte ^ 0xff) && p[size - 1] == (byte ^ 0xff), size);
        memset(p, 1, size);
        p = realloc(p, 2 * size);
        CHECK_AT(p && p[0] == 1 && p[size - 1] == 1 && p[2 * size - 1] == (byte ^ 0xff), size);
        free(p);
        /* Small ones: the memory of others may have gone back. */
        if (strict() && size < 1000) CHECK_AT(p[size] == byte && p[2 * size - 1] == byte, size);
        p = calloc(1, size);
        CHECK_AT(p && p[0] == 0 && p[size / 2] == 0 && p[size - 1] == 0, size);
        free(p);
        CHECK(posix_memalign((void **)&p, 256, size) == 0);
        CHECK_AT(p[0] == (byte ^ 0xff) && p[size - 1] == (byte ^ 0xff), size);
        free(p);
    }
}

static inline void all_controls(void) {
    garbage_mixed();
    CHECK(malloc_trim(0) == 1);
    struct mallinfo2 m = mallinfo2();
    CHECK(m.arena == m.uordblks + m.fordblks);
    static char text[60000];
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK(f && malloc_info(0, f) == 0 && fclose(f) == 0 && strstr(text, "</malloc>"));
    mallopt(M_PERTURB, 0xa5);
    check_fills(0xa5);
    mallopt(M_PERTURB, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    malloc_stats();
    garbage_mixed();
    malloc_trim(1 << 20);
}

#endif
