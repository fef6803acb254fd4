/* Frees a pointer 16 bytes inside a large block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(300000);
    dprintf(1, "%p\n", p + 16);
    free(p + 16);
    return 0;
}
