/* The system schedules the helper as it does the process, whatever thread has started it. */
#include "purge.h"
#include <linux/sched.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static atomic_int freed, stop;

/* The number of the helper, found by its name. It comes late on a busy machine; 0: it has not come yet, or has ended. */
static int helper(void) {
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir);
    int found = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        int file = e->d_name[0] == '.' ? -1 : open(path, O_RDONLY);
        if (file < 0) continue;
        if (read(file, name, sizeof name - 1) > 0 && strcmp(name, "neap-helper\n") == 0) found = atoi(e->d_name);
        close(file);
    }
    closedir(dir);
    return found;
}

/* Policy and nice value of a thread. */
struct schedule { int policy, nice; };
static struct schedule schedule_of(int thread) {
    return (struct schedule){sched_getscheduler(thread), getpriority(PRIO_PROCESS, (id_t)thread)};
}
static int is_as(int thread, struct schedule wanted) {
    struct schedule is = schedule_of(thread);
    return is.policy == wanted.policy && is.nice == wanted.nice;
}
static int processors_are(int thread, const cpu_set_t *wanted) {
    cpu_set_t is;
    return sched_getaffinity(thread, sizeof is, &is) == 0 && CPU_EQUAL(&is, wanted);
}

/* The processor with the highest number of those that the process may use. */
static int last_processor(void) {
    cpu_set_t all;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    if (CPU_COUNT(&all) < 2) SKIP("one processor");
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &all)) last--;
    return last;
}
static void pin(int processor) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}
static void set_policy(int policy, int priority) {
    struct sched_param p = {.sched_priority = priority};
    if (sched_setscheduler(0, policy, &p)) SKIP("policy %d: errno %d", policy, errno);
}
static void may_change_nice(void) {
    struct rlimit nice;
    if (geteuid() && (getrlimit(RLIMIT_NICE, &nice) || nice.rlim_cur < 20)) SKIP("a lower nice value is refused");
}

/* Frees, and polls on a processor of its own. */
static void *plane(void *arg) {
    pin(last_processor());
    set_policy((int)(intptr_t)arg, 50);
    garbage(20, 1 << 20, 2 << 20);
    freed = 1;
    for (long end = now_ms() + 30000; !stop && now_ms() < end;) {}
    return NULL;
}
static void polling_starter(int policy) {
    pthread_t t;
    cpu_set_t all;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    last_processor();
    CHECK(pthread_create(&t, NULL, plane, (void *)(intptr_t)policy) == 0);
    while (!freed) usleep(1000);
    garbage_large();
    long start = now_ms();
    while (status_kib("VmRSS:") > 16 << 10) {
        int thread = helper();
        if (thread && is_as(thread, (struct schedule){SCHED_OTHER, 0})) CHECK(processors_are(thread, &all));
        CHECK_AT(now_ms() - start < 20000, status_kib("VmRSS:"));
        nap(20);
    }
    if (now_ms() - start > GOAL_MS) printf("back after %ld ms, the goal is %d\n", now_ms() - start, GOAL_MS);
    stop = 1;
    CHECK(pthread_join(t, NULL) == 0);
}
static void realtime_starter(void) { polling_starter(SCHED_FIFO); }
static void round_robin_starter(void) { polling_starter(SCHED_RR); }

/* The kernel does not let such a thread start another one. */
static void *deadline(void *unused) {
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; }
        wanted = {48, SCHED_DEADLINE, 0, 0, 0, 10000000, 30000000, 30000000};
    if (syscall(SYS_sched_setattr, 0, &wanted, 0)) SKIP("deadlines are refused: errno %d", errno);
    garbage(20, 1 << 20, 2 << 20);
    freed = 1;
    while (!stop) usleep(10000);
    return unused;
}
static void deadline_starter(void) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, deadline, NULL) == 0);
    while (!freed) usleep(1000);
    garbage_large();
    long start = now_ms();
    for (; status_kib("VmRSS:") > 16 << 10; nap(20)) {
        garbage(5, 40 << 10, 100 << 10);
        CHECK_AT(now_ms() - start < 20000, status_kib("VmRSS:"));
    }
    stop = 1;
    CHECK(pthread_join(t, NULL) == 0);
}

/* Frees again and again with little right to a processor. */
static void *background(void *how) {
    if (how) CHECK(setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19) == 0);
    else set_policy(SCHED_IDLE, 0);
    while (!stop) {
        garbage(4, 1 << 20, 1 << 20);
        nap(20);
    }
    return NULL;
}
static void background_starter(void *how) {
    pthread_t t;
    may_change_nice();
    struct schedule own = schedule_of(0);
    CHECK(pthread_create(&t, NULL, background, how) == 0);
    int thread = 0;
    WAIT_FOR((thread = helper()) && is_as(thread, own), 20000);
    stop = 1;
    CHECK(pthread_join(t, NULL) == 0);
}
static void idle_starter(void) { background_starter(NULL); }
static void nice_starter(void) { background_starter(""); }

/* A process that was started with little right to processors, and with few of them, keeps to that. */
static void low_process(void) {
    cpu_set_t one;
    pin(last_processor());
    CHECK(sched_getaffinity(0, sizeof one, &one) == 0);
    CHECK(setpriority(PRIO_PROCESS, 0, 7) == 0);
    set_policy(SCHED_BATCH, 0);
    int thread = 0;
    for (long end = now_ms() + 20000; !(thread = helper()); nap(5)) {
        CHECK(now_ms() < end);
        garbage(4, 1 << 20, 1 << 20);
    }
    CHECK(is_as(thread, (struct schedule){SCHED_BATCH, 7}) && processors_are(thread, &one));
}

static const struct test_case CASES[] = {
    CASE(realtime_starter), CASE(round_robin_starter), CASE(deadline_starter),
    CASE(idle_starter),     CASE(nice_starter),        CASE(low_process),
};
TEST_MAIN(CASES)
