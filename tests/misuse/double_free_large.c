/* Frees a large block twice. */
#include "misuse.h"

int main(void) {
    void *p = malloc(300000), *q = malloc(300000);
    dprintf(1, "%p\n", p);
    free(p);
    free(p);
    free(q);
    return 0;
}
