/* A debugger stops this program in `stop`, looks for functions, and calls some. */
#include <stdio.h>
#include <stdlib.h>

void *volatile block;

__attribute__((noinline)) void stop(void);
void stop(void) { __asm__ volatile(""); }

int main(void) {
    block = malloc(100);
    stop();
    free(block);
    puts("ok");
    return 0;
}
