/* All functions that change user and groups, in a program that has threads and frees memory. */
#include "check.h"
#include <grp.h>

static void *nothing(void *arg) { return arg; }
static void all_functions(void) {
    if (geteuid()) SKIP("only root can become another user");
    for (int i = 0; i < 64; i++) {
        void *p = malloc(1 << 20);
        CHECK(p);
        memset(p, 1, 1 << 20);
        free(p);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    gid_t groups[] = {7, 8}, has[8];
    CHECK(setgroups(2, groups) == 0 && getgroups(8, has) == 2 && has[0] == 7 && has[1] == 8);
    CHECK(initgroups("root", 9) == 0 && getgroups(8, has) >= 1);
    CHECK(setegid(5) == 0 && getegid() == 5 && getgid() != 5);
    CHECK(setregid(5, 6) == 0 && getgid() == 5 && getegid() == 6);
    CHECK(setresgid(1, 2, 3) == 0 && getgid() == 1 && getegid() == 2);
    CHECK(setgid(4) == 0 && getgid() == 4 && getegid() == 4);
    CHECK(seteuid(5) == 0 && geteuid() == 5 && getuid() == 0);
    errno = 0;
    CHECK(seteuid(6) == -1 && errno == EPERM);
    CHECK(setreuid(-1, 0) == 0 && geteuid() == 0);
    CHECK(setresuid(1, 0, 3) == 0 && getuid() == 1 && geteuid() == 0);
    CHECK(setuid(2) == 0 && getuid() == 2 && geteuid() == 2);
    errno = 0;
    CHECK(setuid(0) == -1 && errno == EPERM);
}

static const struct test_case CASES[] = {CASE(all_functions)};
TEST_MAIN(CASES)
