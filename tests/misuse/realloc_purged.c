/* Resizes a freed block whose OS page went back to the system in between. */
#include "misuse.h"

int main(void) {
    static char *moved;
    moved = realloc(make_purged(), 1000);
    memset(malloc(64), 2, 64);
    churn();
    return moved == NULL;
}
