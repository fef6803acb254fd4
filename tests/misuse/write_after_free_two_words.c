/* Overwrites the first words of a freed block with a plausible pointer. */
#include "misuse.h"

int main(void) {
    char **p = malloc(64), **q = malloc(64);
    dprintf(1, "%p\n", (void *)p);
    free(p);
    p[0] = p[1] = (char *)(q + 1);
    for (int i = 0; i < 100000; i++) *(volatile char *)malloc(64) = 1;
    free(q);
    return 0;
}
