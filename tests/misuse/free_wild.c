/* Frees an address where nothing is mapped. */
#include "misuse.h"

int main(void) {
    char *volatile p = (char *)0x123456789abc0;
    dprintf(1, "%p\n", p);
    free(p);
    return 0;
}
