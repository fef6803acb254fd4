/* Frees 16 bytes inside a block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(64);
    dprintf(1, "%p\n", p + 16);
    free(p + 16);
    return 0;
}
