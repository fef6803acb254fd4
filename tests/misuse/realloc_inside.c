/* Resizes from a pointer inside a block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(64);
    dprintf(1, "%p\n", p + 16);
    p = realloc(p + 16, 1000);
    return 0;
}
