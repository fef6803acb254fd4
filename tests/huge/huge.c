/* Option `huge` on the real system. Each case needs the option in the environment. */
#include "check.h"
#include <malloc.h>
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

/* What the process and its children have. Before Linux 6.18 there is no such setting. */
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

/* A process that was started without huge pages keeps none. */
static void disabled(void) {
    CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
    char *p = malloc(32 * MIB);
    memset(p, 1, 32 * MIB);
    int advised;
    CHECK(huge_bytes(p, 32 * MIB, &advised) == 0 && !advised);
    free(p);
}

/* Starts this program again without huge pages. */
static void without(void) {
    CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
    execl("/proc/self/exe", "huge", "disabled", (char *)NULL);
    CHECK(0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {CASE(thp), CASE(always), CASE(advised), CASE(disabled), CASE(without)};
    return run_cases(argc, argv, cases, sizeof cases / sizeof *cases);
}
