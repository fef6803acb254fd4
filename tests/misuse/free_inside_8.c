/* Frees 8 bytes inside a block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(64);
    dprintf(1, "%p\n", p + 8);
    free(p + 8);
    return 0;
}
