/* Says whether this is secure execution, and whether new blocks are filled, after some work of the allocator. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

int main(void) {
    char *block = calloc(1000, 1000);
    if (!block || block[999999]) return 1;
    free(block);
    unsigned char *fresh = malloc(100);
    if (!fresh) return 1;
    printf("secure %lu\n%s\n", getauxval(AT_SECURE), fresh[50] == 0x5a ? "filled" : "as it is");
    free(fresh);
    return 0;
}
