/* Frees a pointer into a part of the heap where nothing was allocated yet: beyond the slab of another block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(64);
    char *far = (char *)(((uintptr_t)p | 0x3ffff) + 1 + 0x40000 - 64);
    dprintf(1, "%p\n", far);
    free(far);
    return 0;
}
