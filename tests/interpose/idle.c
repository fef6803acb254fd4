/* A program that frees and rests, so that neap's helper thread does all it ever does. */
#include "purge.h"

static void rest_after_work(void) {
    for (int round = 0; round < 2; round++) {
        long before = status_kib("VmRSS:");
        garbage(20000, 1000, 5000);
        garbage(40, 1 << 20, 2 << 20);
        wait_for_rss(before + (4 << 10));
    }
}

static const struct test_case cases[] = {CASE(rest_after_work)};
TEST_MAIN(cases)
