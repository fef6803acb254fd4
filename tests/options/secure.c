/* Prints whether this is secure execution, and whether new blocks are filled, after some work of the allocator. */
#include <malloc.h>
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
    /* Controls that the program itself calls work in any case. */
    FILE *null = fopen("/dev/null", "w");
    struct mallinfo2 info = mallinfo2();
    if (!null || malloc_info(0, null) || info.arena != info.uordblks + info.fordblks) return 1;
    malloc_trim(0);
    mallopt(M_PERTURB, 0x11);
    fresh = malloc(100);
    if (!fresh || fresh[50] != 0xee) return 1;
    free(fresh);
    return 0;
}
