// Faults at known functions and variables, in a known order.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 64 KiB apart: the kernel maps up to 16 pages around a fault in a file, and would hide every other one.
#define APART __attribute__((noinline, aligned(65536)))
#define PAGE __attribute__((aligned(4096)))

#define EACH(X) X(one) X(two) X(three) X(four) X(five) X(six) X(seven) X(eight)

#define DATA(n) static volatile char data_##n[4096] PAGE = {1}; static volatile char bss_##n[4096] PAGE;
EACH(DATA)

#define FUNCTION(n)                        \
    APART static void function_##n(void) { \
        data_##n[7] = 2;                   \
        bss_##n[9] = 3;                    \
    }
EACH(FUNCTION)

// Not in the page of the last function.
APART int main(void) {
#define CALL(n) function_##n();
    EACH(CALL)
    return 0;
}
