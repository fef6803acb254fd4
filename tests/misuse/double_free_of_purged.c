/* Frees a block again whose OS page went back to the system in between, and with it the mark that tells. */
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
