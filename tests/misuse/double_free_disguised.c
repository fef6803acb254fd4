/* Frees a block, writes all over it, and frees it again. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64), *q = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    memset(p, 0, 64);
    free(p);
    free(q);
    churn();
    return 0;
}
