/* Frees a, b, a: the classic that makes a free list run in a circle. */
#include "misuse.h"

int main(void) {
    void *a = malloc(64), *b = malloc(64);
    dprintf(1, "%p\n", a);
    free(a);
    free(b);
    free(a);
    return 0;
}
