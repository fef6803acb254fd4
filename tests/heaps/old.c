/* Pages that were used for something else before: blocks that grow by realloc, so that pages of small blocks become free
 * and are used for larger ones; and one block of 256 MiB, of which one byte is written, too large for an arena of mimalloc.
 * Prints "live BLOCKS BYTES", the bytes that were written at least, and "ready", then waits for its input to end.
 * Arguments as of busy.c: the second one is the number of blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HUGE = 256 << 20 };

int main(int argc, char **argv) {
    static char buffer[1 << 12];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    int count = argc > 2 ? atoi(argv[2]) : 0;
    char **block = calloc(count, sizeof *block);
    for (size_t size = 16; size < 30000; size = size * 2 + 8)
        for (int i = 0; i < count; i++) {
            block[i] = realloc(block[i], size + i % 16);
            memset(block[i], 1, size + i % 16);
        }
    memset(malloc(HUGE), 1, 1);
    printf("live %zu %zu\nready\n", (size_t)count + 2, 16384 * (size_t)count);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    _exit(0);
}
