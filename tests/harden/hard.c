/* What harden=on promises: one mode for each promise, selected by the first argument. Compiled without optimisation. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what) {
    dprintf(2, "failed: %s\n", what);
    _exit(3);
}

static void zeroed(void) {
    for (size_t size = 16; size <= 20000; size = size * 3 / 2) {
        volatile unsigned char *p = malloc(size);
        memset((void *)p, 0xA5, size);
        free((void *)p);
        for (size_t i = 0; i < size; i++)
            if (p[i] != 0) {
                dprintf(2, "byte %zu of %zu\n", i, size);
                fail("a freed block still holds what it held");
            }
    }
}

static void random_places(void) {
    enum { N = 500 };
    char *last = NULL;
    int in_order = 0;
    for (int i = 0; i < N; i++) {
        char *p = malloc(48);
        in_order += last && p == last + 48;
        last = p;
    }
    if (in_order > N / 5) fail("blocks follow one another");
}

static void written_after_free(void) {
    /* The second one keeps the slab. */
    char *p = malloc(100), *q = malloc(100);
    dprintf(1, "%p\n", (void *)p);
    free(p);
    p[60] = 1;
    for (int i = 0; i < 100000; i++) *(volatile char *)malloc(100) = 1;
    free(q);
}

static void over_the_slab(void) {
    volatile char *p = malloc(64);
    uintptr_t end = ((uintptr_t)p | 0xFFFF) + 1;
    dprintf(1, "writing\n");
    while ((uintptr_t)p < end) *p++ = 1;
}

static void over_the_large_block(void) {
    volatile char *p = malloc(100000);
    p[102399] = 1;
    dprintf(1, "writing\n");
    p[102400] = 1;
}

static void twice(void) {
    void *p = malloc(100), *q = malloc(100);
    dprintf(1, "%p\n", p);
    free(p);
    free(p);
    free(q);
}

static void check(const unsigned char *p, size_t size, unsigned char byte) {
    for (size_t i = 0; i < size; i += 509)
        if (p[i] != byte) fail("a block lost its contents");
}

/* All sizes grow and shrink across the borders between kinds of blocks. */
static void resized(void) {
    static const size_t sizes[] = {40, 5000, 32768, 33000, 300000, 120000, 4000000, 3999000, 65536, 65537, 61440, 100};
    size_t have = 10;
    unsigned char *p = malloc(have);
    memset(p, 7, have);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            p = realloc(p, sizes[i]);
            check(p, have < sizes[i] ? have : sizes[i], 7);
            memset(p, 7, sizes[i]);
            have = sizes[i];
        }
    }
    free(p);
}

/* More guards than the limit, and zeroed blocks among them. */
static void many(void) {
    enum { N = 40000 };
    static unsigned char *blocks[N];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            size_t size = i % 2 ? 40000 : 6000;
            blocks[i] = i % 3 ? malloc(size) : calloc(1, size);
            if (!blocks[i]) fail("no memory");
            if (i % 3 == 0 && (blocks[i][0] || blocks[i][size - 1])) fail("calloc is not zero");
            blocks[i][0] = blocks[i][size - 1] = 1;
        }
        for (int i = 0; i < N; i++) free(blocks[(i * 7919) % N]);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {
        {"zeroed", zeroed},
        {"random", random_places},
        {"after-free", written_after_free},
        {"over-slab", over_the_slab},
        {"over-large", over_the_large_block},
        {"twice", twice},
        {"resized", resized},
        {"many", many},
    };
    for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            dprintf(1, "done\n");
            return 0;
        }
    }
    return 2;
}
