/* What every test program shares: CHECK, SKIP, and a main that runs the case named by its first argument. */
#ifndef NEAP_TESTS_CHECK_H
#define NEAP_TESTS_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fails with a message that needs no memory. */
#define CHECK(cond)                                                                                    \
    do {                                                                                               \
        if (!(cond)) {                                                                                 \
            dprintf(2, "%s:%d: %s: CHECK(%s), errno %d\n", __FILE__, __LINE__, __func__, #cond, errno); \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

/* As CHECK, and prints one number: which round, size or address was wrong. */
#define CHECK_AT(cond, number)                                                                         \
    do {                                                                                               \
        if (!(cond)) {                                                                                 \
            dprintf(2, "%s:%d: %s: CHECK(%s) at %s = %#llx, errno %d\n", __FILE__, __LINE__, __func__,   \
                    #cond, #number, (unsigned long long)(number), errno);                               \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

/* Reports that the case cannot run here. */
#define SKIP(...)                                                                                      \
    do {                                                                                               \
        dprintf(1, __VA_ARGS__);                                                                       \
        dprintf(1, "\n");                                                                              \
        _exit(77);                                                                                     \
    } while (0)

/* Whether the library under test is neap, which must keep every promise. */
static inline int strict(void) { return getenv("NEAP_TEST_STRICT") != NULL; }

struct test_case {
    const char *name;
    void (*run)(void);
};
#define CASE(f) {#f, f}

/* Runs the case named by argv[1], then prints ok; --list prints the names of all. */
static inline int run_cases(int argc, char **argv, const struct test_case *cases, size_t count) {
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) printf("%s\n", cases[i].name);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            printf("ok\n");
            return 0;
        }
    }
    dprintf(2, "no such case: %s\n", argc > 1 ? argv[1] : "(none)");
    return 2;
}
#define TEST_MAIN(cases)                                                                               \
    int main(int argc, char **argv) { return run_cases(argc, argv, cases, sizeof(cases) / sizeof(cases[0])); }

/* A small, fast, repeatable generator (xorshift64*). */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Dull;
}

/* Fills a block with a pattern made from a seed, and checks it. */
static inline void fill(void *block, size_t size, uint64_t seed) {
    unsigned char *p = (unsigned char *)block;
    for (size_t i = 0; i < size; i++) p[i] = (unsigned char)(seed + i * 131);
}
static inline size_t first_difference(const void *block, size_t size, uint64_t seed) {
    const unsigned char *p = (const unsigned char *)block;
    for (size_t i = 0; i < size; i++)
        if (p[i] != (unsigned char)(seed + i * 131)) return i;
    return size;
}
#define CHECK_FILL(block, size, seed) CHECK_AT(first_difference(block, size, seed) == (size), size)

/* A field in KiB of a file such as /proc/self/status, read without malloc; -1 if it is not there. */
static inline long proc_kib(const char *file, const char *field) {
    static char text[8192];
    int fd = open(file, O_RDONLY);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    char *at = strstr(text, field);
    return at ? strtol(at + strlen(field) + 1, NULL, 10) : -1;
}
static inline long status_kib(const char *field) { return proc_kib("/proc/self/status", field); }

#endif
