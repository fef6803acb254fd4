/* Limits, errors and /proc as the rest of the system knows them. */
#include "trust.h"

/* A limit on address space that a process sets on itself counts for what it allocates from then on. */
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

/* Tools take the first line of /proc/PID/maps for the program. */
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

static const struct test_case cases[] = {CASE(address_space_limited_later), CASE(posix_memalign_sets_errno),
                                         CASE(program_comes_first)};
TEST_MAIN(cases)
