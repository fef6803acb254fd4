/* Asks for the size of a freed block. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    dprintf(1, "%zu\n", malloc_usable_size(p));
    return 0;
}
