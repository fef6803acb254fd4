/* torture SEED SECONDS PROGRESS-FILE ACTOR[=COUNT]... : see torture.h. Words that are no actors: `+NAME` permits the
   actor `changes` a change, `fail` means that system calls fail, `slow` that they are late, `pool` that pages of a pool
   are taken away, `small` and `large` choose sizes, `signals` starts a storm of signals, `mdwe` refuses memory that is
   executable after it was writable. */
#include "torture.h"
#include <stdarg.h>

atomic_int stop, resting, keeps_memory, filtered;
int calls_fail, calls_late, scarce_pool, sizes = 'm', report_file = 2, is_alone = 1;
FILE *nowhere;
__thread int in_handler __attribute__((tls_model("initial-exec")));
__thread int may_fork __attribute__((tls_model("initial-exec")));

enum { PROGRESS_SLOTS = 64, NAME = 24, PATIENCE_MS = 8000, MUCH_PATIENCE_MS = 60000, QUIET_KIB = 24 << 10, EXACT_FILE_KIB = 36 << 10, SITES_FILE_KIB = 9 << 10, FILTERED_KIB = 60 << 10 };

/* The contents of the file, which the runner reads. */
static struct {
    atomic_ulong beats[PROGRESS_SLOTS];
    char names[PROGRESS_SLOTS][NAME];
} *page;
static atomic_ulong seeds;

_Noreturn void fail(const char *format, ...) {
    char text[300] = "torture: ";
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + 9, sizeof text - 10, format, args) + 9;
    va_end(args);
    if (n > (int)sizeof text - 2) n = sizeof text - 2;
    text[n++] = '\n';
    if (write(report_file, text, (size_t)n) != n) abort();
    _exit(99);
}

uint64_t new_seed(void) {
    uint64_t seed = atomic_fetch_add(&seeds, 0x9E3779B97F4A7C15ull) | 1;
    draw(&seed);
    return seed;
}

int progress_begin(const char *name) {
    for (int i = 0; i < PROGRESS_SLOTS; i++) {
        unsigned long none = 0;
        if (atomic_compare_exchange_strong(&page->beats[i], &none, 1)) {
            memset(page->names[i], 0, NAME);
            strncpy(page->names[i], name, NAME - 1);
            return i;
        }
    }
    return -1;
}
void progress(int slot) {
    if (slot >= 0) atomic_fetch_add(&page->beats[slot], 1);
}
void progress_end(int slot) {
    if (slot >= 0) atomic_store(&page->beats[slot], 0);
}

void rest(int slot, long ms) {
    for (long end = now_ms() + ms; now_ms() < end && !atomic_load(&stop); progress(slot)) nap_us(5000);
}

int start_thread(pthread_t *thread, void *(*body)(void *), void *arg, size_t stack, int detached, int signals) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    /* Keeps the C library's cache of stacks small: it ends the process where it cannot unmap one. */
    pthread_attr_setstacksize(&attributes, stack ? stack : 256 << 10);
    pthread_attr_setdetachstate(&attributes, detached ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    if (signals) {
        sigset_t none;
        sigemptyset(&none);
        pthread_attr_setsigmask_np(&attributes, &none);
    }
    int error = pthread_create(thread, &attributes, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

static const struct actor actors[] = {
    {"worker", worker, 1},     {"waves", waves, 1},     {"lives", lives, 0}, {"holes", holes, 0}, {"options", options, 1}, {"quick_forks", quick_forks, 0}, {"growth", growth, 0},   {"small_stacks", small_stacks, 0},
    {"forks", forks, 0},       {"handlers", handlers, 0}, {"vforks", vforks, 0}, {"trims", trims, 1},
    {"limits", limits, 0},     {"mappings", mappings, 0}, {"advice", advice, 1}, {"filters", filters, 0},
    {"libraries", libraries, 0}, {"rests", rests, 0},       {"sandbox", sandbox, 0}, {"garbage", garbage, 1},
    {"dense", dense, 1},       {"ranges", ranges, 0},     {"profiles", profiles, 0}, {"changes", changes, 0},
    {"crowd", crowd, 0},
};

long resident(void) {
    char text[100];
    int file = open("/proc/self/statm", O_RDONLY);
    ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = strchr(text, ' ');
    return at ? atol(at) * (sysconf(_SC_PAGESIZE) / 1024) : 0;
}

/* Free memory goes back by itself; `live` bytes of blocks may stay, each with the OS pages that it begins and ends on.
   */
static void check_resident(long before, size_t live, int slow) {
    const char *purge = getenv("NEAP_PURGE");
    if (calls_fail || atomic_load(&keeps_memory) || (purge && strcmp(purge, "eager") && strcmp(purge, "decay"))) return;
    int slot = progress_begin("idle at the end");
    /* A file with room for each live block is resident as far as it was used. */
    const char *profile = getenv("NEAP_PROFILE"), *interval = getenv("NEAP_PROFILE_INTERVAL");
    if (profile && *profile && interval && !strcmp(interval, "1")) before += EXACT_FILE_KIB;
    /* The file of allocation sites is resident as far as it was used. */
    const char *sites = getenv("NEAP_SITES");
    if (sites && *sites) before += SITES_FILE_KIB;
    long most = before + (live ? (long)(live >> 10) + SLOTS * 8 : 0) + (atomic_load(&filtered) ? FILTERED_KIB + atomic_load(&threshold_kib) : QUIET_KIB);
    for (long end = now_ms() + (slow ? MUCH_PATIENCE_MS : PATIENCE_MS); resident() > most; progress(slot)) {
        if (now_ms() > end) fail("MEMORY STAYS: RSS is %ld KiB, %ld at the start, %zu are in blocks", resident(), before, live >> 10);
        nap_us(20000);
    }
    progress_end(slot);
}

/* Whether an actor has blocks, or other memory, of its own: a child of fork would have it too. */
static int owns_blocks(const char *actor) {
    static const char *const those[] = {"crowd", "dense", "ranges", "holes", "lives", "garbage", "growth", "mappings", "profiles", "small_stacks", "vforks"};
    for (size_t i = 0; i < sizeof those / sizeof *those; i++)
        if (!strncmp(actor, those[i], strlen(those[i]))) return 1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    atomic_store(&seeds, strtoull(argv[1], NULL, 0) * 2 + 1);
    /* Injected faults may make one call of some fail. */
    int file = -1;
    for (int tries = 0; file < 0 && tries < 4; tries++) file = open(argv[3], O_RDWR | O_CLOEXEC);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || page == MAP_FAILED) return 2;
    close(file);
    for (int i = 4; i < argc; i++)
        if (!strncmp(argv[i], "lives", 5)) cancel_once();
    nowhere = fopen("/dev/null", "w");
    /* With a buffer of its own the C library does not ask at the first use whether this is a terminal (ioctl). */
    static char buffer[BUFSIZ];
    if (nowhere) setvbuf(nowhere, buffer, _IOFBF, sizeof buffer);
    prctl(PR_SET_NAME, "torture"); /* Calls fail from here on: see inject.c. */
    long before = resident(), end = now_ms() + atol(argv[2]) * 1000;
    int storm = 0, slow = 0, started = 0;
    pthread_t threads[PROGRESS_SLOTS];
    sigset_t all;
    sigfillset(&all);
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "fail")) calls_fail = 1;
        if (!strcmp(argv[i], "small") || !strcmp(argv[i], "large")) sizes = argv[i][0];
        scarce_pool |= !strcmp(argv[i], "pool");
        calls_late |= slow |= !strcmp(argv[i], "slow");
        storm |= !strcmp(argv[i], "signals");
        if (argv[i][0] == '+' && !permit_change(argv[i] + 1)) fail("no change is called %s", argv[i] + 1);
        is_alone &= !owns_blocks(argv[i]);
        /* Fails on Linux before 6.3. */
        if (!strcmp(argv[i], "mdwe")) prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0);
    }
    for (int i = 4; i < argc; i++) {
        size_t name = strcspn(argv[i], "=");
        int count = argv[i][name] ? atoi(argv[i] + name + 1) : 1;
        for (size_t k = 0; k < sizeof actors / sizeof *actors; k++)
            for (int j = 0; j < count && started < PROGRESS_SLOTS / 2; j++)
                if (strlen(actors[k].name) == name && !strncmp(actors[k].name, argv[i], name))
                    started += start_thread(&threads[started], actors[k].body, NULL, 0, 0, actors[k].signals);
    }
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    uint64_t seed = new_seed();
    if (storm) start_signals(&seed);
    while (now_ms() < end) nap_us(20000);
    atomic_store(&stop, 1);
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    check_resident(before, live_bytes() + 1, slow);
    int slot = progress_begin("main, at the end");
    check_all("at the end");
    free_all();
    progress_end(slot);
    check_resident(before, 0, slow);
    if (write(1, "ok\n", 3) != 3) return 1;
    _exit(0);
}
