// Faults in a function that the C library calls; neither the library nor this program has frame pointers.
#include <stdlib.h>
#include <sys/mman.h>

#define FUNCTION __attribute__((noinline)) static

static char *memory;
static int calls;

FUNCTION void leaf(void) { __asm__ volatile(""); }

FUNCTION int compare(const void *a, const void *b) {
    leaf();
    memory[4096 * calls++] = 1;
    return *(const int *)a - *(const int *)b;
}

FUNCTION int sort_them(void) {
    int values[8] = {3, 1, 2, 5, 4, 8, 7, 6};
    qsort(values, 8, sizeof values[0], compare);
    return values[0];
}

int main(void) {
    memory = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return sort_them() - 1;
}
