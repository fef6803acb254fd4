/* Controls in a process whose filter kills it for all but the usual system calls. */
#include "controls.h"
#include "filter.h"

static void killed(void) {
    all_controls();
    filter(only_usual(SECCOMP_RET_KILL_PROCESS, 1));
    all_controls();
}
static const struct test_case CASES[] = {CASE(killed)};
TEST_MAIN(CASES)
