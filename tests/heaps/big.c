/* Many small blocks, of 215 bytes on average with headers. Argument: how many. Prints "ready" and waits for its input to
 * end. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long blocks = argc > 1 ? atol(argv[1]) : 0;
    unsigned long state = 1;
    for (long i = 0; i < blocks; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t length = 24 + (state >> 33) % 360;
        volatile char *block = malloc(length);
        if (!block) return 1;
        block[0] = block[length - 1] = 1;
    }
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
