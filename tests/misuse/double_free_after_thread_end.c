/* A thread makes and frees a block and ends; then the block is freed again. */
#include "misuse.h"

int main(void) {
    void *p = NULL;
    in_thread(make_it_and_free, &p);
    dprintf(1, "%p\n", p);
    free(p);
    churn();
    return 0;
}
