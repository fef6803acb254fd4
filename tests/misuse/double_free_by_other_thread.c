/* The owner frees a block, then another thread does. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64), *q = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    in_thread(free_it, p);
    free(q);
    churn();
    return 0;
}
