/* Frees a block again whose OS page went back to the system in between, together with its tag. */
#include "misuse.h"

int main(void) {
    free(make_purged());
    char *got = malloc(64);
    memset(got, 2, 64);
    churn();
    free(got);
    churn();
    return 0;
}
