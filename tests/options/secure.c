/* Says whether this is secure execution, after some work of the allocator. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

int main(void) {
    char *block = calloc(1000, 1000);
    if (!block || block[999999]) return 1;
    free(block);
    printf("secure %lu\n", getauxval(AT_SECURE));
    return 0;
}
