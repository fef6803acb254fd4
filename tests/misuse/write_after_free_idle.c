/* Writes to a freed block in a thread that then idles. The helper, which has a file table of its own, detects it when
   it empties the caches of idle threads, and must still print the message. */
#include "misuse.h"
#include <unistd.h>

int main(void) {
    static void *p[40];
    char **block = malloc(64);
    dprintf(1, "%p\n", (void *)block);
    free(block);
    block[0] = (char *)0x4141414141414141;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 40; i++) memset(p[i] = malloc(1 << 20), 1, 1 << 20);
        for (int i = 0; i < 40; i++) free(p[i]);
        sleep(2);
    }
    return 0;
}
