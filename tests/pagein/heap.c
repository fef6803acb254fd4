// Touches blocks of known sizes: 25 OS pages of a large one, 40 of a very large one, and small ones.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    char *large = malloc(100000), *huge = malloc(300 << 20);
    for (size_t i = 0; i < 100000; i += 4096) large[i] = 1;
    for (size_t i = 0; i < 40; i++) huge[i * (7 << 20)] = 1;
    for (int i = 0; i < 400; i++) *(volatile char *)malloc(1000) = 1;
    printf("%p %p\n", (void *)large, (void *)huge);
    fflush(stdout);
    // Blocks are looked up some milliseconds after the faults; later where neap waits for a processor.
    sleep(2);
    return 0;
}
