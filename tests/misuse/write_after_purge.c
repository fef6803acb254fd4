/* Writes to a freed block whose OS page went back to the system in between. */
#include "misuse.h"

int main(void) {
    memset(make_purged(), 2, 64);
    churn();
    return 0;
}
