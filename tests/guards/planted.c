/* A program with one bug among 400 blocks of 1,000 bytes, in each run. Without a guard the bug goes unnoticed. */
#include "check.h"

static char *volatile p;
static char *volatile q;

static void one(int bug) {
    p = malloc(1000);
    memset(p, 1, 1000);
    if (bug == 1) p[1000] = 0; /* the class has 1,024 bytes */
    free(p);
    if (bug == 2 || bug == 3) {
        q = malloc(1000);
        if (bug == 2) p[500] = 7;
        if (bug == 3) free(p), q = malloc(1000);
        free(q);
    }
}
int main(int argc, char **argv) {
    CHECK(argc > 2);
    int bug = atoi(argv[1]), at = atoi(argv[2]) % 400;
    for (int i = 0; i < 400; i++) one(i == at ? bug : 0);
    printf("ok\n");
    return 0;
}
