/* Resizes a freed block. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    p = realloc(p, 1000);
    return 0;
}
