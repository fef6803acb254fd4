/* Frees a pointer 1 MiB inside a huge block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(256 << 20);
    dprintf(1, "%p\n", p + (1 << 20));
    free(p + (1 << 20));
    return 0;
}
