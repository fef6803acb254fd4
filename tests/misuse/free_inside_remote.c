/* Another thread frees 16 bytes inside a block. */
#include "misuse.h"

int main(void) {
    char *p = malloc(64);
    dprintf(1, "%p\n", p + 16);
    in_thread(free_it, p + 16);
    churn();
    return 0;
}
