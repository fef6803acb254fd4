/* Changes of user and groups: when the call returns, no thread of the process has the old ones. */
#include "purge.h"
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { ROUNDS = 50, OTHER = 65534 };

static void as_root(void) {
    if (geteuid()) SKIP("only root can become another user");
}

/* /proc/self/task, also after the program has changed its root. */
static int tasks = -1;
static void open_tasks(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", getpid());
    tasks = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(tasks >= 0);
}

/* The lines of users and groups of a thread, in its status file. */
static int rights_of(const char *thread, char *text, size_t size) {
    char path[300];
    snprintf(path, sizeof path, "%s/status", thread);
    int fd = openat(tasks, path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *from = strstr(text, "\nUid:"), *groups = strstr(text, "\nGroups:");
    CHECK(from && groups);
    *strchr(groups + 1, '\n') = 0;
    /* The line between has the size of the table of files, which a helper has of its own. */
    char *table = strstr(from, "\nFDSize:");
    CHECK(table);
    memmove(table, groups, strlen(groups) + 1);
    memmove(text, from, strlen(from) + 1);
    return 1;
}

/* All threads have the rights of the calling one, the first. Returns their number. */
static int all_have_ours(void) {
    char own[64], first[8192], other[8192];
    snprintf(own, sizeof own, "%d", getpid());
    CHECK(rights_of(own, first, sizeof first));
    DIR *dir = fdopendir(openat(tasks, ".", O_RDONLY | O_DIRECTORY));
    CHECK(dir);
    int count = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.' || !rights_of(e->d_name, other, sizeof other)) continue;
        count++;
        if (strcmp(first, other)) printf("first thread:%s\nthread %s:%s\n", first, e->d_name, other);
        CHECK(strcmp(first, other) == 0);
    }
    closedir(dir);
    return count;
}

/* Waits until there is a helper; much less work than `with_helper`. */
static void helped(void) {
    for (long end = now_ms() + PATIENCE_MS; threads() < 2; nap(1)) {
        CHECK(now_ms() < end);
        garbage(4, 1 << 20, 1 << 20);
    }
}

/* Makes a change beside a helper, and looks at all threads at once. */
#define CHANGE(call)            \
    do {                        \
        helped();               \
        CHECK((call) == 0);     \
        all_have_ours();        \
    } while (0)

/* Each function of the family; the last ones cannot be undone. */
static void whole_family(void) {
    gid_t groups[] = {OTHER, 7};
    CHANGE(setgroups(2, groups));
    CHANGE(initgroups("root", 9));
    CHANGE(setegid(OTHER));
    CHANGE(setregid(0, 7));
    CHANGE(setresgid(7, OTHER, OTHER));
    CHANGE(setgid(OTHER));
    CHANGE(seteuid(OTHER));
    CHANGE(setreuid(-1, 0));
    CHANGE(setresuid(OTHER, 0, 0));
    CHANGE(setuid(OTHER));
    uid_t user[3];
    gid_t group[3];
    CHECK(getresuid(&user[0], &user[1], &user[2]) == 0 && getresgid(&group[0], &group[1], &group[2]) == 0);
    for (int i = 0; i < 3; i++) CHECK(user[i] == OTHER && group[i] == OTHER);
    CHECK(getgroups(0, NULL) >= 1 && setuid(0) == -1);
}
static void in_child(void (*f)(void)) {
    pid_t pid = fork();
    if (pid == 0) {
        alarm(240);
        open_tasks();
        f();
        _exit(0);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_AT(status == 0, status);
}
static void family(void) {
    as_root();
    for (int i = 0; i < ROUNDS; i++) in_child(whole_family);
}

/* To another user and back, as servers do for each request. */
static void flip(void) {
    for (int i = 0; i < ROUNDS; i++) {
        CHANGE(seteuid(OTHER));
        CHANGE(seteuid(0));
    }
}
static void back_and_forth(void) {
    as_root();
    open_tasks();
    flip();
    wait_for_rss(32 << 10);
}

/* Where neap can open neither /proc nor anything else. */
static void in_empty_root(void) {
    as_root();
    int old = open("/", O_RDONLY | O_DIRECTORY);
    char root[] = "/tmp/neap-rights-XXXXXX";
    CHECK(old >= 0 && mkdtemp(root));
    open_tasks();
    /* `threads` needs /proc: there are helpers as long as memory waits. */
    garbage_large();
    CHECK(chroot(root) == 0 && chdir("/") == 0);
    int most = 0;
    for (int i = 0; i < ROUNDS; i++) {
        garbage(4, 1 << 20, 1 << 20);
        int count = all_have_ours();
        if (count > most) most = count;
        CHECK(seteuid(i % 2 ? 0 : OTHER) == 0);
        all_have_ours();
    }
    CHECK_AT(most == 2, most);
    CHECK(fchdir(old) == 0 && chroot(".") == 0 && rmdir(root) == 0);
}

/* Another namespace of users, in which only one user is known. */
static void write_to(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}
static void flip_in_namespace(void) {
    for (int i = 0; i < ROUNDS; i++) {
        CHANGE(seteuid(i % 2 ? 0 : 5));
        helped();
        errno = 0;
        CHECK(seteuid(1000) == -1 && errno == EINVAL);
        all_have_ours();
    }
}
static void in_namespace(void) {
    as_root();
    int ready[2], mapped[2], status;
    char byte = 0, path[64];
    CHECK(pipe(ready) == 0 && pipe(mapped) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(240);
        open_tasks();
        helped();
        if (unshare(CLONE_NEWUSER)) _exit(2);
        CHECK(write(ready[1], &byte, 1) == 1 && read(mapped[0], &byte, 1) == 1);
        flip_in_namespace();
        _exit(0);
    }
    close(ready[1]);
    /* Nothing comes where the child ends before. */
    if (read(ready[0], &byte, 1) == 1) {
        snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
        write_to(path, "0 0 10\n");
        snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
        write_to(path, "0 0 10\n");
        CHECK(write(mapped[1], &byte, 1) == 1);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) SKIP("%s", "user namespaces are refused");
    CHECK_AT(status == 0, status);
}

/* In handlers, which may interrupt malloc and free. */
static atomic_int flips;
static void on_alarm(int sig) {
    (void)sig;
    int code = errno;
    CHECK(seteuid(OTHER) == 0 && seteuid(0) == 0);
    flips++;
    errno = code;
}
static void in_handlers(void) {
    as_root();
    open_tasks();
    CHECK(signal(SIGALRM, on_alarm) != SIG_ERR);
    struct itimerval each = {{0, 2000}, {0, 2000}}, none = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &each, NULL) == 0);
    while (flips < 4 * ROUNDS) garbage(200, 16, 1 << 20);
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
    CHANGE(seteuid(OTHER));
}

/* Beside threads that allocate, free and fork. */
static atomic_int stop;
static void *busy(void *arg) {
    while (!stop) {
        garbage(50, 16, 1 << 20);
        if (!arg) continue;
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
    return NULL;
}
static void beside_threads(void) {
    as_root();
    open_tasks();
    pthread_t t[3];
    for (intptr_t i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)(i & 1)) == 0);
    int most = 0;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        CHECK(seteuid(i % 2 ? 0 : OTHER) == 0);
        int count = all_have_ours();
        if (count > most) most = count;
        nap(2);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK_AT(most >= 4, most);
}

/* A child in the memory of its parent changes only itself. */
static void in_vfork(void) {
    as_root();
    open_tasks();
    for (int i = 0; i < ROUNDS; i++) {
        helped();
        pid_t pid = vfork();
        if (pid == 0) _exit(setgroups(0, NULL) || setgid(OTHER) || setuid(OTHER));
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK_AT(status == 0, status);
        all_have_ours();
    }
    CHECK(geteuid() == 0);
}

/* What waits goes back after the change, too. */
static void other_user(void) {
    as_root();
    open_tasks();
    helped();
    garbage_large();
    CHECK(setgroups(0, NULL) == 0 && setgid(OTHER) == 0 && setuid(OTHER) == 0);
    all_have_ours();
    wait_for_rss(16 << 10);
    garbage_mixed();
    all_have_ours();
    wait_for_rss(16 << 10);
    check_zeroed();
}

static const struct test_case CASES[] = {
    CASE(family),      CASE(back_and_forth), CASE(in_empty_root), CASE(in_namespace),
    CASE(in_handlers), CASE(beside_threads), CASE(in_vfork),      CASE(other_user),
};
TEST_MAIN(CASES)
