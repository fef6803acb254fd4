/* Frees a page boundary inside a large block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(300000);
    dprintf(1, "%p\n", p + 65536);
    free(p + 65536);
    return 0;
}
