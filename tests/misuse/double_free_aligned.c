/* Frees an aligned block twice. */
#include "misuse.h"

int main(void) {
    void *p = aligned_alloc(4096, 64), *q = aligned_alloc(4096, 64);
    dprintf(1, "%p\n", p);
    free(p);
    free(p);
    free(q);
    return 0;
}
