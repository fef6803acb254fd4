/* Frees a huge block twice. */
#include "misuse.h"

int main(void) {
    void *p = malloc(256 << 20);
    dprintf(1, "%p\n", p);
    free(p);
    free(p);
    return 0;
}
