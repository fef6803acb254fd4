/* glibc's controls: each does what its users expect. */
#include "controls.h"
#include <limits.h>
#include <signal.h>

static void mallopt_values(void) {
    static const int accepted[][2] = {
        {M_MXFAST, 0},   {M_MXFAST, 160},    {M_TRIM_THRESHOLD, 1 << 20}, {M_TRIM_THRESHOLD, -1}, {M_TOP_PAD, 0},
        {M_TOP_PAD, 64}, {M_MMAP_MAX, 0},    {M_MMAP_MAX, 65536},         {M_CHECK_ACTION, 3},    {M_PERTURB, 0},
        {M_ARENA_MAX, 1}, {M_ARENA_TEST, 2}, {M_MMAP_THRESHOLD, 1 << 20}, {M_MMAP_THRESHOLD, -1}, {0, 5},
        {77, 0},          {INT_MAX, 1},      {INT_MIN, 1},
    };
    errno = 4711;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        CHECK_AT(mallopt(accepted[i][0], accepted[i][1]) == 1, i);
    CHECK(mallopt(M_MXFAST, 161) == 0 && mallopt(M_MXFAST, -1) == 0 && (!strict() || mallopt(M_MMAP_MAX, -1) == 0));
    CHECK(errno == 4711);
}

static void perturb(void) {
    garbage_small();
    CHECK(mallopt(M_PERTURB, 0xa5) == 1);
    check_fills(0xa5);
    CHECK(mallopt(M_PERTURB, 0x15a) == 1);
    check_fills(0x5a);
    CHECK(mallopt(M_PERTURB, 0) == 1);
    unsigned char *p = malloc(100);
    memset(p, 7, 100);
    free(p);
    p = malloc(100);
    CHECK(!strict() || p[50] == 7);
    garbage_small();
}
/* A thread with full caches that is idle when it begins. */
static volatile int stage;
static void *follower(void *arg) {
    void *p[50];
    for (int i = 0; i < 50; i++) p[i] = malloc(100);
    for (int i = 0; i < 50; i++) free(p[i]);
    stage = 1;
    while (stage != 2) nap(1);
    check_fills(0xa5);
    return arg;
}
static void perturb_threads(void) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, follower, NULL) == 0);
    while (stage != 1) nap(1);
    mallopt(M_PERTURB, 0xa5);
    stage = 2;
    CHECK(pthread_join(t, NULL) == 0);
}
/* Set through the environment: the case's first argument is a byte in MALLOC_PERTURB_ or a tunable. */
static void perturb_by_environment(void) { check_fills(0xa5); }
static void no_perturb(void) {
    unsigned char *p = malloc(100);
    memset(p, 0x11, 100);
    free(p);
    p = malloc(100);
    CHECK(p[50] == 0x11);
}

static void trim_returns(void) {
    mallopt(M_TRIM_THRESHOLD, -1);
    malloc_trim(0);
    garbage_large();
    CHECK(malloc_trim(0) == 1);
    CHECK_AT(status_kib("VmRSS:") < 20 << 10, status_kib("VmRSS:"));
    CHECK(malloc_trim(0) == 0);
    /* Free, but without resident memory. */
    for (int i = 0; i < 10; i++) free(malloc(50 << 20));
    CHECK(malloc_trim(0) == 0);
    garbage_small();
    CHECK(malloc_trim(0) == 1 && malloc_trim(0) == 0);
    errno = 4711;
    garbage_mixed();
    malloc_trim(0);
    CHECK(errno == 4711);
}
static void trim_pad(void) {
    mallopt(M_TRIM_THRESHOLD, -1);
    garbage_large();
    CHECK(malloc_trim(100 << 20) == 1);
    long rss = status_kib("VmRSS:");
    CHECK_AT(rss > 95 << 10 && rss < 125 << 10, rss);
    CHECK(malloc_trim(100 << 20) == 0);
    CHECK(malloc_trim(0) == 1);
}
/* Memory in the caches of sleeping threads, and between survivors. */
static volatile int ready;
static void *hoarder(void *arg) {
    static __thread char *p[4000];
    for (int i = 0; i < 4000; i++) p[i] = memset(malloc(700), 1, 700);
    for (int i = 0; i < 4000; i++)
        if (i % 40) free(p[i]);
    for (int i = 0; i < 4; i++) free(memset(malloc(300 << 10), 1, 300 << 10));
    __sync_fetch_and_add(&ready, 1);
    while (ready < 100) nap(5);
    return arg;
}
static void trim_threads_and_holes(void) {
    enum { N = 8 };
    pthread_t t[N];
    mallopt(M_TRIM_THRESHOLD, -1);
    for (int i = 0; i < N; i++) CHECK(pthread_create(&t[i], NULL, hoarder, NULL) == 0);
    while (ready < N) nap(5);
    struct mallinfo2 before = mallinfo2();
    CHECK(malloc_trim(0) == 1);
    struct mallinfo2 after = mallinfo2();
    if (strict()) {
        CHECK_AT(before.fsmblks > 1 << 20 && after.fsmblks < 64 << 10, after.fsmblks);
        CHECK_AT(after.keepcost < 64 << 10, after.keepcost);
    }
    CHECK_AT(status_kib("VmRSS:") < 14 << 10, status_kib("VmRSS:"));
    ready = 100;
    for (int i = 0; i < N; i++) CHECK(pthread_join(t[i], NULL) == 0);
}
static volatile int end;
static void *worker(void *arg) {
    uint64_t seed = (uintptr_t)arg + 1;
    static __thread struct { unsigned char *p; size_t size; } slot[200];
    while (!end) {
        int i = next_random(&seed) % 200;
        if (slot[i].p) CHECK_FILL(slot[i].p, slot[i].size, i);
        free(slot[i].p);
        slot[i].size = next_random(&seed) % (next_random(&seed) % 50 ? 2000 : 200000);
        slot[i].p = malloc(slot[i].size);
        CHECK(slot[i].p);
        fill(slot[i].p, slot[i].size, i);
    }
    return NULL;
}
/* Everything at once: trims, reports and switches while threads work. */
static void under_load(void) {
    pthread_t t[4];
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, worker, (void *)i) == 0);
    for (long stop = now_ms() + 2000, i = 0; now_ms() < stop; i++) {
        malloc_trim(i % 3 ? 0 : 1 << 20);
        struct mallinfo2 m = mallinfo2();
        CHECK(m.arena == m.uordblks + m.fordblks);
        char *text;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        CHECK(malloc_info(0, f) == 0 && fclose(f) == 0 && strstr(text, "</malloc>"));
        free(text);
        mallopt(M_PERTURB, i % 4 == 1 ? 0x77 : 0);
        mallopt(M_MMAP_THRESHOLD, i % 2 ? 128 << 10 : -1);
    }
    end = 1;
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

static void mallinfo_figures(void) {
    struct mallinfo2 a = mallinfo2();
    CHECK(a.arena == a.uordblks + a.fordblks && a.usmblks == 0);
    char *p = malloc(5000000);
    struct mallinfo2 b = mallinfo2();
    CHECK_AT(b.uordblks + b.hblkhd - a.uordblks - a.hblkhd - malloc_usable_size(p) < 64, b.uordblks);
    free(p);
    struct mallinfo2 c = mallinfo2();
    if (strict()) CHECK(c.uordblks == a.uordblks && c.arena == c.uordblks + c.fordblks && c.fordblks > 5000000);
    for (int i = 0; i < 1000; i++) {
        p = malloc(40);
        if (i % 2) free(p);
    }
    struct mallinfo2 d = mallinfo2();
    CHECK_AT(d.uordblks - c.uordblks >= 500 * 40 && d.uordblks - c.uordblks < 500 * 64, d.uordblks - c.uordblks);
    /* More than an int can hold. */
    p = malloc((size_t)3 << 30);
    CHECK(p);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo old = mallinfo();
    if (strict()) CHECK(old.uordblks == INT_MAX && mallinfo2().uordblks > (size_t)3 << 30);
    free(p);
    /* A block beyond all arenas is a mapping of its own. */
    p = malloc((size_t)63 << 30);
    if (p && strict()) {
        struct mallinfo2 e = mallinfo2();
        CHECK(e.hblks == 1 && e.hblkhd >= (size_t)63 << 30 && e.arena < (size_t)4 << 30);
    }
    free(p);
}

static void info_errors(void) {
    FILE *f = fopen("/dev/null", "w");
    CHECK(f && malloc_info(0, f) == 0);
    CHECK(malloc_info(1, f) == EINVAL && malloc_info(-1, NULL) == EINVAL);
    FILE *full = fopen("/dev/full", "w");
    if (full && strict()) {
        setvbuf(full, NULL, _IONBF, 0);
        CHECK(malloc_info(0, full) == -1);
    }
}
static void stats_text(void) {
    errno = 4711;
    malloc_stats();
    CHECK(errno == 4711);
}
static void state(void) {
    void *(*get)(void) = (void *(*)(void))(intptr_t)0;
    int (*set)(void *) = NULL;
    extern void *malloc_get_state(void) __attribute__((weak));
    extern int malloc_set_state(void *) __attribute__((weak));
    get = malloc_get_state, set = malloc_set_state;
    if (!get || !set) SKIP("this C library no longer has them");
    errno = 0;
    CHECK(get() == NULL && errno == ENOSYS);
    CHECK(set(NULL) == -1 && set(&errno) == -1);
}

/* M_MMAP_THRESHOLD: freed memory goes back at once. M_MMAP_MAX 0 turns that off, and 1 turns it on again. */
static void freed_at_once(int at_once) {
    char *p = malloc(64 << 20);
    memset(p, 1, 64 << 20);
    long before = status_kib("VmRSS:");
    free(p);
    long after = status_kib("VmRSS:");
    CHECK_AT((before - after > 60 << 10) == at_once, before - after);
}
static void mmap_threshold(void) {
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    freed_at_once(1);
    mallopt(M_MMAP_MAX, 0);
    if (strict()) freed_at_once(0);
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    if (strict()) freed_at_once(0);
    mallopt(M_MMAP_MAX, 100);
    freed_at_once(1);
}
static void trim_threshold(void) {
    mallopt(M_TRIM_THRESHOLD, -1);
    garbage_large();
    nap(1500);
    CHECK_AT(!strict() || status_kib("VmRSS:") > 100 << 10, status_kib("VmRSS:"));
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
    wait_for_rss(30 << 10);
}
static void everything(void) { all_controls(); }
static void chrooted(void) {
    char dir[] = "/tmp/neap-controls-XXXXXX";
    CHECK(mkdtemp(dir));
    int failed = chroot(dir) || chdir("/");
    rmdir(dir);
    if (failed) SKIP("no right to chroot");
    CHECK(open("/proc/self/maps", O_RDONLY) < 0);
    all_controls();
}
/* A process that others inspect: writes its report into files, and waits. */
static void watched(void) {
    char *dir = getenv("CONTROLS_DIR");
    CHECK(dir && chdir(dir) == 0);
    static char *p[20000];
    for (int i = 0; i < 20000; i++) p[i] = memset(malloc(16 + i % 3000), 1, 16 + i % 3000);
    for (int i = 0; i < 20000; i += 3) free(p[i]);
    free(memset(malloc(7 << 20), 1, 7 << 20));
    FILE *xml = fopen("info.xml", "w"), *info = fopen("info.part", "w");
    CHECK(xml && info);
    /* Makes the streams allocate their buffers. */
    fprintf(xml, " ");
    fprintf(info, " ");
    rewind(xml);
    mallopt(M_TRIM_THRESHOLD, -1);
    malloc_trim(1 << 20);
    CHECK(malloc_info(0, xml) == 0);
    struct mallinfo2 m = mallinfo2();
    fflush(xml);
    fprintf(info, "%zu %zu %zu %zu %zu %zu %zu %zu %zu\n", m.arena, m.ordblks, m.smblks, m.hblks, m.hblkhd, m.fsmblks,
            m.uordblks, m.fordblks, m.keepcost);
    fflush(info);
    rename("info.part", "info");
    for (;;) pause();
}

static const struct test_case CASES[] = {
    CASE(mallopt_values), CASE(perturb), CASE(perturb_threads), CASE(perturb_by_environment), CASE(no_perturb),
    CASE(trim_returns), CASE(trim_pad), CASE(trim_threads_and_holes), CASE(under_load), CASE(mallinfo_figures),
    CASE(info_errors), CASE(stats_text), CASE(state), CASE(mmap_threshold), CASE(trim_threshold), CASE(everything),
    CASE(chrooted), CASE(watched),
};
TEST_MAIN(CASES)
