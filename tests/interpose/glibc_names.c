/* One of glibc's names on musl; with PROGRAM, a program that shows which C library neap detects. */
#ifdef PROGRAM
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    puts(realloc(malloc(100), 0) ? "a block" : "NULL");
    return 0;
}
#else
typedef void handler(void);
int pthread_atfork(handler *before, handler *parent, handler *child);
int __register_atfork(handler *before, handler *parent, handler *child, void *object) {
    (void)object;
    return pthread_atfork(before, parent, child);
}
#endif
