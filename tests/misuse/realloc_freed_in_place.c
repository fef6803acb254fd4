/* Resizes a freed block to a size that fits. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    p = realloc(p, 60);
    return 0;
}
