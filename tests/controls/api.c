/* neap's own functions, linked or found by name in the preloaded library. */
#include "check.h"
#include "purge.h"
#include "../../include/neap.h"
#include <malloc.h>
#include <stdatomic.h>
#include <sys/wait.h>

static void options(void) {
    char text[64];
    CHECK(neap_option_get("purge", text, sizeof text) == NEAP_OK && strcmp(text, "decay") == 0);
    CHECK(neap_option_origin("purge", text, sizeof text) == NEAP_OK && strcmp(text, "default") == 0);
    CHECK(neap_option_set("purge_bytes", "64M") == NEAP_OK);
    CHECK(neap_option_get("purge_bytes", text, sizeof text) == NEAP_OK && strcmp(text, "64M") == 0);
    CHECK(neap_option_origin("purge_bytes", text, sizeof text) == NEAP_OK && strcmp(text, "the program") == 0);
    CHECK(neap_option_set("purge_bytes", "64X") == NEAP_BAD_VALUE && neap_option_set("purge", "") == NEAP_BAD_VALUE);
    CHECK(neap_option_set("counters", "/tmp") == NEAP_START_ONLY);
    CHECK(neap_option_set("color", "red") == NEAP_UNKNOWN && neap_option_set(NULL, NULL) == NEAP_UNKNOWN);
    CHECK(neap_option_get("purge_bytes", text, 3) == NEAP_TOO_SHORT && text[0] == 0);
    CHECK(neap_option_get("purge_bytes", text, 4) == NEAP_OK && neap_option_get("zero", NULL, 0) == NEAP_TOO_SHORT);
    CHECK(neap_option_get("\xff", text, sizeof text) == NEAP_UNKNOWN);
    CHECK(strstr(neap_result_text(NEAP_START_ONLY), "starts") && neap_result_text(99));
}
static void expect(const char *option, const char *wanted) {
    char text[64];
    CHECK(neap_option_get(option, text, sizeof text) == NEAP_OK);
    if (strcmp(text, wanted) != 0) dprintf(2, "%s is %s, not %s\n", option, text, wanted);
    CHECK(strcmp(text, wanted) == 0);
}
/* What mallopt turns off and on again is restored, unless another setting came in between. */
static void mallopt_brings_back(void) {
    CHECK(neap_option_set("purge", "eager") == NEAP_OK);
    for (int i = 0; i < 2; i++) CHECK(mallopt(M_TRIM_THRESHOLD, -1) == 1);
    expect("purge", "never");
    CHECK(mallopt(M_TRIM_THRESHOLD, 64 << 10) == 1);
    expect("purge", "eager");
    expect("purge_bytes", "64K");
    CHECK(mallopt(M_TRIM_THRESHOLD, -1) == 1 && neap_option_set("purge", "lazy") == NEAP_OK);
    CHECK(mallopt(M_TRIM_THRESHOLD, 128 << 10) == 1);
    expect("purge", "lazy");
    CHECK(neap_option_set("purge", "never") == NEAP_OK && mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1);
    expect("purge", "never");

    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(M_MMAP_MAX, 0) == 1);
    expect("mmap_threshold", "none");
    CHECK(mallopt(M_MMAP_MAX, 1) == 1);
    expect("mmap_threshold", "1M");
    CHECK(mallopt(M_MMAP_MAX, 0) == 1 && neap_option_set("mmap_threshold", "2M") == NEAP_OK && mallopt(M_MMAP_MAX, 1) == 1);
    expect("mmap_threshold", "2M");
}
/* A change of options affects memory that already waits. */
static void options_reach_what_waits(void) {
    CHECK(neap_option_set("purge", "never") == NEAP_OK);
    garbage_large();
    nap(800);
    CHECK_AT(status_kib("VmRSS:") > 100 << 10, status_kib("VmRSS:"));
    CHECK(neap_option_set("purge", "decay") == NEAP_OK);
    wait_for_rss(30 << 10);
}
static void figures(void) {
    void *first = malloc(100);
    struct neap_stats s = {.size = sizeof s}, old = {.size = 0};
    CHECK(neap_stats_get(&s) == NEAP_OK && s.size == sizeof s && s.version == 1 && s.live_bytes > 0);
    uint64_t live = s.live_bytes;
    void *p = malloc(3000000);
    CHECK(neap_stats_get(&s) == NEAP_OK && s.live_bytes >= live + 3000000 && s.large_blocks > 0);
    free(p);
    /* An older program's structure is shorter, a newer one's longer. */
    CHECK(neap_stats_get(&old) == NEAP_TOO_SHORT);
    old.size = offsetof(struct neap_stats, cached_blocks);
    old.cached_blocks = 4711;
    CHECK(neap_stats_get(&old) == NEAP_OK && old.live_bytes > 0 && old.cached_blocks == 4711);
    /* One that ends within a field. */
    old.size = offsetof(struct neap_stats, cached_blocks) + 4, old.cached_blocks = 4711;
    CHECK(neap_stats_get(&old) == NEAP_OK && old.size == offsetof(struct neap_stats, cached_blocks));
    CHECK(old.cached_blocks == 4711 && neap_stats_get(NULL) == NEAP_TOO_SHORT);
    struct { struct neap_stats s; uint64_t more; } newer = {.s = {.size = sizeof newer}, .more = 4711};
    CHECK(neap_stats_get(&newer.s) == NEAP_OK && newer.s.size == sizeof s && newer.more == 4711);
    free(first);
}
static void trims(void) {
    CHECK(neap_option_set("purge", "never") == NEAP_OK);
    garbage_large();
    size_t first = neap_trim(0, 1), rest = neap_trim(0, 0);
    CHECK_AT(first < 50 << 20 && rest > 100 << 20, first);
    CHECK(neap_trim(0, 0) == 0 && neap_purge() == 0);
}
static void idle_thread(void) {
    void *p[100];
    for (int i = 0; i < 100; i++) p[i] = malloc(500);
    for (int i = 0; i < 100; i++) free(p[i]);
    struct neap_stats s = {.size = sizeof s};
    neap_stats_get(&s);
    uint64_t full = s.cached_bytes;
    neap_thread_idle();
    neap_stats_get(&s);
    CHECK_AT(s.cached_bytes + 20000 < full, s.cached_bytes);
}

/* What the hook has recorded: live blocks, by address. */
enum { MOST = 1 << 16 };
static void *live[MOST];
static volatile long allocated, freed, unknown;
static double weight;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void hook(const struct neap_sample *s, void *context) {
    CHECK(context == live && s->size == sizeof *s && s->reserved == 0 && s->block);
    CHECK(s->event == NEAP_FREED || (s->usable >= s->requested && s->weight >= s->requested));
    free(strdup("hooks may allocate"));
    errno = 77;
    pthread_mutex_lock(&lock);
    size_t i = (uintptr_t)s->block / 65536 % MOST, tried = 0;
    void *wanted = s->event == NEAP_ALLOCATED ? NULL : s->block;
    while (live[i] != wanted && tried++ < MOST) i = (i + 1) % MOST;
    if (tried >= MOST) {
        unknown++;
    } else if (s->event == NEAP_ALLOCATED) {
        live[i] = s->block, allocated++, weight += s->weight;
    } else {
        live[i] = NULL, freed++;
    }
    pthread_mutex_unlock(&lock);
}
static volatile uint64_t asked;
static void *allocate(void *arg) {
    uint64_t seed = (uintptr_t)arg + 1, sum = 0;
    for (int i = 0; i < 30000; i++) {
        size_t size = next_random(&seed) % 2000 + 1;
        errno = 4711;
        unsigned char *p = i % 5 ? malloc(size) : i % 2 ? calloc(1, size) : aligned_alloc(128, size);
        CHECK(p && (uintptr_t)p % 16 == 0 && errno == 4711);
        CHECK(i % 5 || i % 2 == 0 || (p[0] == 0 && p[size - 1] == 0));
        sum += size;
        fill(p, size, i);
        if (i % 7 == 0) {
            p = realloc(p, 3 * size + 100);
            CHECK(p);
            sum += 3 * size + 100;
            CHECK_FILL(p, size, i);
        }
        errno = 4711;
        free(p);
        CHECK(errno == 4711);
    }
    __sync_fetch_and_add(&asked, sum);
    return NULL;
}
static void in_threads(int n) {
    pthread_t t[8];
    for (intptr_t i = 0; i < n; i++) CHECK(pthread_create(&t[i], NULL, allocate, (void *)i) == 0);
    for (int i = 0; i < n; i++) CHECK(pthread_join(t[i], NULL) == 0);
}
static void samples(void) {
    in_threads(4);
    asked = 0;
    CHECK(neap_sample(hook, live, 10000) == NEAP_OK);
    in_threads(4);
    long n = allocated;
    CHECK(neap_sample(NULL, NULL, 0) == NEAP_OK);
    double ratio = weight / asked;
    CHECK_AT(n > 5000 && ratio > 0.9 && ratio < 1.1, ratio * 1000);
    CHECK_AT(unknown == 0 && freed >= n - 20 && freed <= n, freed);
    in_threads(2);
    CHECK(allocated == n);
}
/* Each block is a sample: all ways to allocate and free, and the child of a fork. */
static void sample_all(void) {
    CHECK(neap_sample(hook, live, 0) == NEAP_OK);
    in_threads(2);
    CHECK_AT(unknown == 0 && allocated > 60000, allocated);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        allocate((void *)9);
        _exit(unknown != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(malloc_trim(0) >= 0);
    neap_sample(NULL, NULL, 0);
    allocate((void *)3);
}
static atomic_int stop;
static void *hold_and_free(void *unused) {
    static void *p[64];
    while (!atomic_load(&stop)) {
        for (int i = 0; i < 64; i++) CHECK(p[i] = malloc(100));
        for (int i = 0; i < 64; i++) free(p[i]);
    }
    return unused;
}
/* A thread frees samples, and runs the hook, while another one forks. */
static void samples_beside_forks(void) {
    CHECK(neap_sample(hook, live, 0) == NEAP_OK);
    pthread_t t;
    CHECK(pthread_create(&t, NULL, hold_and_free, NULL) == 0);
    while (allocated < 1000) usleep(1000);
    for (int i = 0; i < 2000; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        CHECK(waitpid(child, NULL, 0) == child);
    }
    long n = allocated;
    for (int i = 0; i < 1000 && allocated < n + 1000; i++) usleep(10000);
    CHECK_AT(allocated >= n + 1000, allocated - n);
    atomic_store(&stop, 1);
    CHECK(pthread_join(t, NULL) == 0);
    neap_sample(NULL, NULL, 0);
    CHECK_AT(unknown == 0 && freed >= allocated - 20 && freed <= allocated, allocated - freed);
}

static const struct test_case CASES[] = {
    CASE(options), CASE(mallopt_brings_back), CASE(options_reach_what_waits), CASE(figures), CASE(trims), CASE(idle_thread), CASE(samples),
    CASE(sample_all), CASE(samples_beside_forks),
};
TEST_MAIN(CASES)
