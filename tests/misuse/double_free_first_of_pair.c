/* Frees a, b, a: the classic way to make a free list a cycle. */
#include "misuse.h"

int main(void) {
    void *a = malloc(64), *b = malloc(64);
    dprintf(1, "%p\n", a);
    free(a);
    free(b);
    free(a);
    return 0;
}
