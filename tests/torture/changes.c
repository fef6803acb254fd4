/* The actor `changes`: the program changes attributes of its threads, of itself and of its blocks. Each argument
   `+NAME` permits the change of that name (attributes.c, children.c). Changes of threads and blocks are made in this
   process; those that nothing undoes, in children of fork, which work on afterwards, some of them with several changes
   one after the other. After each change the bytes of blocks are checked, and what docs/attributes.md promises. */
#include "torture.h"
#include "changes.h"
#include <dirent.h>

enum { MOST_CHANGES = 64, MOST_TASKS = 512, DEFAULT_SLACK_NS = 50000, HELPER_TRIES = 40, CHILD_KIB = 40 << 10, NO_HELPER_KIB = 72 << 10, GIVING_BACK_MS = 20000 };

static const struct change *permitted[MOST_CHANGES];
static int permitted_count;

/* The changes of both tables by name. */
int permit_change(const char *name) {
    const struct change *tables[] = {changes_of_threads, changes_of_children};
    for (size_t t = 0; t < 2; t++)
        for (const struct change *c = tables[t]; c->name; c++)
            if (!strcmp(c->name, name) && permitted_count < MOST_CHANGES) {
                permitted[permitted_count++] = c;
                return 1;
            }
    return 0;
}

static const struct change *draw_change(uint64_t *seed, int of_child) {
    const struct change *those[MOST_CHANGES];
    int count = 0;
    for (int i = 0; i < permitted_count; i++)
        if (permitted[i]->of_child == of_child) those[count++] = permitted[i];
    return count ? those[below(seed, (uint64_t)count)] : NULL;
}

/* ---- What the kernel says of threads */

int task_folder(void) { return open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

/* The thread numbers of the process; 0 where they cannot be read. */
static int tasks(int folder, pid_t *found) {
    char buffer[4096];
    int count = 0;
    if (lseek(folder, 0, SEEK_SET)) return 0;
    for (long n; (n = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;)
        for (long at = 0; at < n;) {
            struct dirent64 *entry = (struct dirent64 *)(buffer + at);
            if (entry->d_name[0] != '.' && count < MOST_TASKS) found[count++] = atoi(entry->d_name);
            at += entry->d_reclen;
        }
    return count;
}

/* The text of a file of a thread; 0 where it cannot be read. */
static int of_task(int folder, pid_t task, const char *name, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "%d/%s", task, name);
    int file = openat(folder, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, text, size - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

int threads_with_user(int folder, unsigned user) {
    static __thread pid_t found[MOST_TASKS] __attribute__((tls_model("initial-exec")));
    char text[2048];
    int count = 0;
    for (int i = tasks(folder, found); i-- > 0;) {
        unsigned real, effective, saved, file;
        if (!of_task(folder, found[i], "status", text, sizeof text)) continue;
        char *state = strstr(text, "\nState:\t"), *ids = strstr(text, "\nUid:\t");
        if (!state || !ids || state[8] == 'Z' || state[8] == 'X') continue;
        if (sscanf(ids, "\nUid:\t%u %u %u %u", &real, &effective, &saved, &file) != 4) continue;
        count += real == user || effective == user || saved == user || file == user;
    }
    return count;
}

/* Whether the C library does not know a thread: it registers a list of locks for each of its own. */
static int is_foreign(pid_t task) {
    void *head = (void *)1;
    size_t size;
    return syscall(SYS_get_robust_list, task, &head, &size) == 0 && !head;
}

/* neap's helper: 0 where there is none. A thread of the C library that just starts looks like one for a moment. */
static pid_t helper(int folder) {
    static __thread pid_t found[MOST_TASKS] __attribute__((tls_model("initial-exec")));
    for (int i = tasks(folder, found); i-- > 0;)
        if (is_foreign(found[i])) {
            nap_us(50000);
            if (is_foreign(found[i])) return found[i];
        }
    return 0;
}

/* What is wrong with the helper; NULL: nothing, or it has ended. */
static const char *wrong_helper(int folder, pid_t task, long *value) {
    char text[64], path[64];
    cpu_set_t its, ours;
    if (!of_task(folder, task, "comm", text, sizeof text)) return NULL;
    int is_named = !strcmp(text, "neap-helper\n"), policy = (int)syscall(SYS_sched_getscheduler, task);
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, (id_t)task), first_nice = getpriority(PRIO_PROCESS, (id_t)getpid()), no_nice = errno;
    if (policy < 0 || no_nice || sched_getaffinity(task, sizeof its, &its) || sched_getaffinity(getpid(), sizeof ours, &ours)) return NULL;
    snprintf(path, sizeof path, "/proc/%d/timerslack_ns", task);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = 0;
    long slack = n > 0 ? atol(text) : DEFAULT_SLACK_NS;
    if (!is_foreign(task)) return NULL; /* It ended, and its number is another thread's. */
    *value = policy & 0xff;
    if (*value != SCHED_OTHER) return "policy";
    *value = nice;
    if (nice < (first_nice < 0 ? first_nice : 0) || nice > (first_nice > 0 ? first_nice : 0)) return "nice value";
    *value = CPU_COUNT(&its);
    if (!CPU_EQUAL(&its, &ours)) return "number of processors";
    *value = slack;
    if (slack != DEFAULT_SLACK_NS) return "timer slack";
    *value = 0;
    return is_named ? NULL : "name";
}

/* A helper that was just started may not have changed yet what it inherits. */
void check_helper(int folder) {
    /* Where system calls fail or are late, neap may not change it, or only after a while. */
    pid_t task = neap_version && folder >= 0 && !calls_fail && !calls_late ? helper(folder) : 0;
    const char *wrong = NULL;
    long value = 0;
    for (int tries = 0; task && tries < HELPER_TRIES; tries++, nap_us(50000))
        if (!(wrong = wrong_helper(folder, task, &value))) return;
    if (wrong) fail("HELPER: its %s is wrong: %ld", wrong, value);
}

/* ---- What the kernel says of memory */

int has_flag(const void *at, const char *flag) {
    char line[512];
    int inside = 0, result = -1;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long start, end;
        char access[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, access) == 3)
            inside = start <= (unsigned long)at && (unsigned long)at < end;
        else if (inside && !strncmp(line, "VmFlags:", 8)) {
            result = strstr(line, flag) != NULL;
            break;
        }
    }
    if (file) fclose(file);
    return result;
}

void leave_garbage(uint64_t *seed) {
    enum { COUNT = 6 };
    char *p[COUNT];
    for (int i = 0; i < COUNT; i++)
        if ((p[i] = malloc(between(seed, 1 << 20, 3 << 20)))) memset(p[i], 1, 1 << 20);
    for (int i = 0; i < COUNT; i++) free(p[i]);
}

void check_zeroed(uint64_t *seed) {
    size_t size = one_in(seed, 3) ? between(seed, 1, 20000) : between(seed, 100000, 4 << 20);
    for (int round = 0; round < 2; round++) {
        unsigned char *p = calloc(1, size);
        for (size_t i = 0; p && i < size; i++)
            if (p[i]) fail("NOT ZERO: calloc(%zu) after a change, offset %zu", size, i);
        if (p) memset(p, 0xa5, size);
        free(p);
    }
}

/* ---- Children */

int child_without_helper, child_keeps;

static atomic_int child_ends;
static void *works_in_child(void *unused) {
    uint64_t seed = new_seed();
    while (!atomic_load(&child_ends)) {
        steps(&seed, 20);
        nap_us(500);
    }
    return unused;
}

/* Memory in many blocks, so that what stays of it is seen. */
static void leave_much_garbage(void) {
    enum { COUNT = 4000, SIZE = 20000 };
    void **all = NULL;
    for (int i = 0; i < COUNT; i++) {
        void **p = malloc(SIZE);
        if (!p) break;
        memset(p, 1, SIZE);
        *p = all;
        all = p;
    }
    for (void **next; all; all = next) {
        next = *all;
        free(all);
    }
}

/* All is freed: what the child does not need goes back. */
void check_child_resident(int slot) {
    const char *purge = getenv("NEAP_PURGE"), *profile = getenv("NEAP_PROFILE");
    if (!neap_version || calls_fail || child_keeps || atomic_load(&keeps_memory) || !is_alone || (purge && strcmp(purge, "eager") && strcmp(purge, "decay"))) return;
    if (profile && *profile) return;
    leave_much_garbage();
    long most = child_without_helper || atomic_load(&filtered) ? NO_HELPER_KIB : CHILD_KIB;
    most += atomic_load(&threshold_kib);
    for (long end = now_ms() + GIVING_BACK_MS; resident() > most; progress(slot)) {
        if (now_ms() > end) fail("MEMORY STAYS in a child after all was freed: RSS is %ld KiB of at most %ld", resident(), most);
        nap_us(20000);
    }
}

static void live_changed(uint64_t *seed, int slot) {
    struct lives_on it = {.slot = slot, .folder = task_folder(), .threads = one_in(seed, 2)};
    pthread_t worker;
    if (it.threads) it.threads = start_thread(&worker, works_in_child, NULL, 0, 0, 0);
    if (one_in(seed, 3)) leave_garbage(seed);
    for (int left = one_in(seed, 3) ? (int)between(seed, 2, 4) : 1; left > 0; left--) {
        const struct change *change = draw_change(seed, 1);
        it.name = change->name;
        change->make(seed, &it);
        progress(slot);
        for (int i = 0; i < 4; i++) {
            steps(seed, 60);
            check_zeroed(seed);
            if (one_in(seed, 2)) leave_garbage(seed);
            progress(slot);
        }
    }
    atomic_store(&child_ends, 1);
    if (it.threads) pthread_join(worker, NULL);
    check_all("in a child that changed itself");
    if (one_in(seed, 3)) {
        free_all();
        check_child_resident(slot);
    }
}

static void change_in_child(uint64_t *seed, int slot) {
    uint64_t its = draw(seed) | 1;
    pid_t child = fork();
    if (child == 0) {
        live_changed(&its, slot);
        _exit(0);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) nap_us(1000);
    if (child > 0 && status) fail("a child that changed itself ended with status %#x", status);
}

/* ---- The actor */

struct one_change {
    const struct change *change;
    uint64_t seed;
    int slot, folder;
};

static void *changed_thread(void *arg) {
    struct one_change *one = arg;
    struct lives_on it = {.slot = one->slot, .folder = one->folder, .threads = 1, .name = one->change->name};
    one->change->make(&one->seed, &it);
    return NULL;
}

void *changes(void *unused) {
    uint64_t seed = new_seed();
    int slot = progress_begin("changes"), folder = task_folder();
    for (; !atomic_load(&stop); progress(slot)) {
        int of_child = one_in(&seed, 3);
        const struct change *change = draw_change(&seed, of_child);
        if (change && of_child) change_in_child(&seed, slot);
        if (change && !of_child) {
            /* In a thread that ends then: what it changed of itself ends with it. */
            struct one_change one = {change, draw(&seed) | 1, slot, folder};
            pthread_t thread;
            if (start_thread(&thread, changed_thread, &one, 0, 0, 0)) pthread_join(thread, NULL);
        }
        if (one_in(&seed, 4)) check_helper(folder);
        if (!change) nap_us(5000);
        if (one_in(&seed, 10)) rest(slot, (long)below(&seed, 300));
    }
    if (folder >= 0) close(folder);
    progress_end(slot);
    return unused;
}
