/* A thread makes a block and ends; then the block is freed twice. */
#include "misuse.h"

int main(void) {
    void *p = NULL;
    in_thread(make_it, &p);
    dprintf(1, "%p\n", p);
    free(p);
    free(p);
    churn();
    return 0;
}
