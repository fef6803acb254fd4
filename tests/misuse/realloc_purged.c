/* Resizes a freed block whose OS page went back to the system in between. */
#include "misuse.h"

int main(void) {
    static char *p[20000];
    for (int i = 0; i < 20000; i++) memset(p[i] = malloc(64), 1, 64);
    for (int i = 0; i < 20000; i++)
        if (i % 1000) free(p[i]);
    malloc_trim(0);
    dprintf(1, "%p\n", p[10500]);
    p[0] = realloc(p[10500], 1000);
    memset(malloc(64), 2, 64);
    churn();
    return 0;
}
