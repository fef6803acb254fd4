/* Writes over the first word of a freed block, then allocates until it is handed out. */
#include "misuse.h"

int main(void) {
    char **p = malloc(64), *q = malloc(64);
    dprintf(1, "%p\n", (void *)p);
    free(p);
    p[0] = (char *)0x4141414141414141;
    for (int i = 0; i < 100000; i++) *(volatile char *)malloc(64) = 1;
    free(q);
    return 0;
}
