/* Frees a block twice in a row. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    free(p);
    return 0;
}
