/* Frees a static variable. */
#include "misuse.h"

int main(void) {
    static _Alignas(64) char block[256];
    char *volatile p = block + 64;
    dprintf(1, "%p\n", p);
    free(p);
    return 0;
}
