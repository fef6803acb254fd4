/* Frees memory that the program mapped by itself. */
#include "misuse.h"

int main(void) {
    char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dprintf(1, "%p\n", p + 4096);
    free(p + 4096);
    return 0;
}
