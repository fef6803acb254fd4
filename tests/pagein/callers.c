// A fault below known callers.
#include <sys/mman.h>

#define FUNCTION __attribute__((noinline)) static

FUNCTION void leaf(void) { __asm__ volatile(""); }

// Not a leaf: compilers omit the frame pointer of leaf functions in any case.
FUNCTION int innermost(volatile char *memory) {
    leaf();
    memory[5] = 1;
    return memory[5];
}

FUNCTION int middle(volatile char *memory) { return innermost(memory) + 1; }

FUNCTION int outermost(volatile char *memory) { return middle(memory) + 2; }

int main(void) {
    char *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return outermost(memory) - 4;
}
