/* One thread that keeps allocating small blocks, and frees most of them at 32 MiB: the heap grows by brk, and its lists
 * change, all the time. Prints "ready", and ends with its input. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 1 << 15 };
static void *blocks[BLOCKS];

int main(void) {
    struct pollfd input = {0, POLLIN, 0};
    puts("ready");
    fflush(stdout);
    for (unsigned i = 0;; i++) {
        unsigned at = i % BLOCKS;
        if (at == 0) for (int k = 0; k < BLOCKS; k++) if (k % 64) free(blocks[k]), blocks[k] = NULL;
        if (!blocks[at]) memset(blocks[at] = malloc(100 + i * 7919 % 2000), 1, 100);
        if (i % 4096 == 0 && poll(&input, 1, 0) > 0) return 0;
    }
}
