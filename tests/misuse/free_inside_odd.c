/* Frees a misaligned pointer. */
#include "misuse.h"

int main(void) {
    char *p = malloc(64);
    dprintf(1, "%p\n", p + 1);
    free(p + 1);
    return 0;
}
