/* Programs that write profiles of themselves. */
#include "check.h"
#include <neap.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#define SITE __attribute__((noinline, noclone))
static void *kept[20000];

SITE static void leaky(void) {
    for (size_t i = 0; i < 20000; i++) {
        CHECK(kept[i] = malloc(1000));
        memset(kept[i], 1, 1000);
    }
}
SITE static void churn(size_t rounds) {
    for (size_t i = 0; i < rounds; i++) {
        volatile char *p = malloc(1000);
        CHECK(p);
        *p = 1;
        free((void *)p);
    }
}
static int to(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    return file;
}

/* Live: 20 MB of leaky; allocated: also 20 MB of churn. `OUT` names the file. */
static void writes(void) {
    CHECK(neap_profile_write(1, NEAP_PROFILE_HEAP) == NEAP_NO_SAMPLES);
    CHECK(neap_profile_start(16384) == NEAP_OK);
    leaky();
    churn(20000);
    errno = 77;
    CHECK(neap_profile_write(to(getenv("OUT")), NEAP_PROFILE_HEAP) == NEAP_OK);
    CHECK(errno == 77);
    neap_profile_stop();
    churn(20000);
    /* Frees after the end are recorded. */
    for (int i = 0; i < 20000; i++) free(kept[i]);
    char name[4096];
    snprintf(name, sizeof name, "%s.freed", getenv("OUT"));
    CHECK(neap_profile_write(to(name), NEAP_PROFILE_ALLOCS) == NEAP_OK);
}

static size_t taken, most;
static int take(const void *bytes, size_t size, void *context) {
    CHECK(context == &taken && ((const char *)bytes)[size - 1] + 1);
    free(malloc(100));
    taken += size;
    return taken > most;
}
/* Each way to fail has its result, and no signal ends the program. */
static void errors(void) {
    CHECK(neap_profile_start(10000) == NEAP_OK);
    leaky();
    CHECK(neap_profile_write(1, 0) == NEAP_BAD_VALUE && neap_profile_write(1, 3) == NEAP_BAD_VALUE);
    CHECK(neap_profile_write(-1, 1) == NEAP_NOT_WRITTEN && neap_profile_write(99, 1) == NEAP_NOT_WRITTEN);
    CHECK(neap_profile_write(to("/dev/full"), 1) == NEAP_FULL);
    int ends[2];
    CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
    CHECK(neap_profile_write(ends[1], 1) == NEAP_READER_GONE);
    sigset_t waiting;
    CHECK(sigpending(&waiting) == 0 && !sigismember(&waiting, SIGPIPE));
    /* A SIGPIPE that was pending before stays pending. */
    sigset_t pipes, before;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    CHECK(sigprocmask(SIG_BLOCK, &pipes, &before) == 0 && raise(SIGPIPE) == 0);
    CHECK(neap_profile_write(ends[1], 1) == NEAP_READER_GONE);
    CHECK(sigpending(&waiting) == 0 && sigismember(&waiting, SIGPIPE));
    CHECK(sigwaitinfo(&pipes, NULL) == SIGPIPE && sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 4096) > 0);
    CHECK(write(ends[1], kept, 4096) == 4096);
    CHECK(neap_profile_write(ends[1], 1) == NEAP_NOT_WRITTEN);
    struct rlimit limit = {100, 100};
    char name[4096];
    snprintf(name, sizeof name, "%s.limit", getenv("OUT"));
    int file = to(name);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(neap_profile_write(file, 1) == NEAP_FULL);
    most = 10;
    CHECK(neap_profile_pass(1, take, &taken) == NEAP_NOT_WRITTEN);
    taken = 0;
    most = SIZE_MAX;
    CHECK(neap_profile_pass(2, take, &taken) == NEAP_OK && taken > 100);
    CHECK(neap_profile_pass(2, NULL, NULL) == NEAP_BAD_VALUE);
    for (int result = NEAP_NO_SAMPLES; result <= NEAP_NOT_WRITTEN; result++)
        CHECK(strcmp(neap_result_text(result), neap_result_text(-1)) != 0);
}

static int null_file;
static atomic_int handled, stop;
static void write_in_handler(int signal) {
    (void)signal;
    int before = errno;
    int result = neap_profile_write(null_file, NEAP_PROFILE_HEAP);
    CHECK(result == NEAP_OK || result == NEAP_NO_SAMPLES);
    CHECK(errno == before);
    handled++;
}
static void *allocate(void *unused) {
    (void)unused;
    while (!stop) churn(1000);
    return NULL;
}
static void *switch_over(void *unused) {
    (void)unused;
    while (!stop) {
        CHECK(neap_profile_start(4096) == NEAP_OK);
        usleep(500);
        neap_profile_stop();
    }
    return NULL;
}
static void every_millisecond(void) {
    struct sigaction action = {.sa_handler = write_in_handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    CHECK(null_file = to("/dev/null"));
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}
/* Handlers that write profiles interrupt calls; threads start and end; sampling goes on and off. */
static void storm(void) {
    CHECK(neap_profile_start(4096) == NEAP_OK);
    every_millisecond();
    pthread_t threads[3];
    CHECK(pthread_create(&threads[2], NULL, switch_over, NULL) == 0);
    for (int round = 0; round < 10; round++) {
        stop = 0;
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, allocate, NULL) == 0);
        for (int i = 0; i < 20; i++) churn(20000);
        if (round == 9) stop = 1;
        for (int i = 0; i < 2; i++) {
            stop = 1;
            CHECK(pthread_join(threads[i], NULL) == 0);
            stop = round == 9;
        }
    }
    CHECK(pthread_join(threads[2], NULL) == 0);
    CHECK(handled > 20);
}
/* Children have profiles of their own, or none yet; the parent's goes on. */
static void forks(void) {
    CHECK(neap_profile_start(4096) == NEAP_OK);
    leaky();
    every_millisecond();
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            taken = 0;
            most = SIZE_MAX;
            churn(1000);
            CHECK(neap_profile_pass(1, take, &taken) == NEAP_OK && taken > 100);
            _exit(0);
        }
        int status;
        while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
        CHECK_AT(status == 0, status);
        churn(1000);
    }
    CHECK(neap_profile_write(to(getenv("OUT")), NEAP_PROFILE_HEAP) == NEAP_OK);
}

/* For profile_signal: makes the file READY once it holds what the profiles must show, and allocates until it is ended.
   */
static void serves(void) {
    leaky();
    close(to(getenv("READY")));
    for (;;) churn(1000);
}
/* When another process has requested samples, the program starts its own sampling. */
static void starts_when_asked(void) {
    taken = 0;
    most = SIZE_MAX;
    while (neap_profile_pass(1, take, &taken) != NEAP_OK) {
        /* More than caches hold, so that neap looks for requests. */
        leaky();
        for (int i = 0; i < 20000; i++) free(kept[i]);
    }
    CHECK(neap_profile_start(4096) == NEAP_OK);
    serves();
}
static void own_handler(int signal) {
    (void)signal;
    dprintf(1, "own\n");
    _exit(0);
}
static void catches(void) {
    signal(SIGUSR2, own_handler);
    close(to(getenv("READY")));
    for (;;) churn(1000);
}
/* A short stack for handlers, as many programs have one. */
static void short_stack(void) {
    stack_t stack = {.ss_sp = malloc(8192), .ss_size = 8192};
    CHECK(sigaltstack(&stack, NULL) == 0);
    serves();
}
/* A hundred signals, then the files are there. */
static void signals_itself(void) {
    leaky();
    for (int i = 0; i < 100; i++) {
        churn(100);
        CHECK(kill(getpid(), SIGUSR2) == 0);
    }
}

static void *start_samples(void *result) {
    *(int *)result = neap_profile_start(4096);
    return NULL;
}
/* Two threads start sampling at once: strace delays the first one while it makes the file. */
static void starts_at_once(void) {
    pthread_t threads[2];
    int results[2] = {-1, -1};
    for (int i = 0; i < 2; i++, usleep(50000)) CHECK(pthread_create(&threads[i], NULL, start_samples, &results[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_AT(results[0] == NEAP_OK, results[0]);
    CHECK_AT(results[1] == NEAP_OK, results[1]);
    leaky();
    taken = 0;
    most = SIZE_MAX;
    CHECK(neap_profile_pass(1, take, &taken) == NEAP_OK && taken > 100);
}
/* There is no memory for samples at first; later there is. */
static void starts_again(void) {
    struct rlimit before, none;
    CHECK(neap_profile_write(1, 1) == NEAP_NO_SAMPLES && getrlimit(RLIMIT_AS, &before) == 0);
    none = before;
    none.rlim_cur = 1;
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    CHECK(neap_profile_start(4096) == NEAP_NO_MEMORY);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(neap_profile_start(4096) == NEAP_OK);
    leaky();
    CHECK(neap_profile_write(to("/dev/null"), 1) == NEAP_OK);
}
/* Maps an OS page right below the mapping for the work, which lies right below `lowest`. All three merge. */
static char *lowest;
static int take_and_map(const void *bytes, size_t size, void *done) {
    (void)bytes, (void)size;
    unsigned char resident;
    if ((*(int *)done)++) return 0;
    char *below = lowest - 4096;
    while (mincore(below, 4096, &resident) == 0) below -= 4096;
    char *mapped = mmap(below, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == below) lowest = below;
    return 0;
}
/* The mapping for the work may merge with its neighbours. Then it cannot be unmapped, because that takes one more
   mapping: its memory must go back all the same. */
static void few_mappings(void) {
    enum { BYTES = 16 << 20 };
    CHECK(neap_profile_start(4096) == NEAP_OK);
    leaky();
    /* Until one lies right below the other, as the next one then will. */
    char *last = NULL, *next = NULL;
    for (int in_row = 0; in_row < 4; last = next) {
        next = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(next != MAP_FAILED);
        in_row = next + BYTES == last ? in_row + 1 : 0;
    }
    size_t pages = 140000, i = 0;
    lowest = last;
    char *many = mmap(last - pages * 4096 - (1l << 30), pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(many != MAP_FAILED);
    while (i < pages && mprotect(many + i * 4096, 4096, PROT_READ) == 0) i += 2;
    CHECK(i < pages);
    long before = status_kib("RssAnon:");
    for (int k = 0; k < 10; k++) {
        int pieces = 0;
        int result = neap_profile_pass(1, take_and_map, &pieces);
        CHECK_AT(result == NEAP_OK || result == NEAP_NO_MEMORY, result);
    }
    CHECK_AT(status_kib("RssAnon:") < before + 128, status_kib("RssAnon:") - before);
}
/* The process has no descriptor left when the signal comes. */
static void no_files(void) {
    leaky();
    struct rlimit limit = {3, 3};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0 && raise(SIGUSR2) == 0);
}
/* A file has replaced the directory when the signal comes. */
static void no_directory(void) {
    leaky();
    char *path = getenv("NEAP_PROFILE"), aside[4096];
    snprintf(aside, sizeof aside, "%s.aside", path);
    CHECK(rename(path, aside) == 0 && close(to(path)) == 0);
    CHECK(raise(SIGUSR2) == 0);
    CHECK(unlink(path) == 0 && rename(aside, path) == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(writes), CASE(errors), CASE(storm), CASE(forks), CASE(serves), CASE(catches), CASE(short_stack),
        CASE(signals_itself), CASE(starts_at_once), CASE(starts_again), CASE(few_mappings), CASE(no_files),
        CASE(no_directory), CASE(starts_when_asked),
    };
    return run_cases(argc, argv, cases, sizeof cases / sizeof *cases);
}
