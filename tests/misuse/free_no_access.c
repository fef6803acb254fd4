/* Frees an address in a mapping that may not be read. */
#include "misuse.h"

int main(void) {
    char *p = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dprintf(1, "%p\n", p + 4096);
    free(p + 4096);
    return 0;
}
