/* Frees a block twice, with other blocks in between. */
#include "misuse.h"

int main(void) {
    void *p = malloc(64), *others[100];
    for (int i = 0; i < 100; i++) others[i] = malloc(64);
    dprintf(1, "%p\n", p);
    free(p);
    for (int i = 0; i < 100; i++) free(others[i]);
    free(p);
    return 0;
}
