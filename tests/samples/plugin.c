/* A plugin; with -DOTHER another one, whose code is at the same place in its file, and whose frames are longer. */
#include <stdlib.h>

#ifdef OTHER
#define ALLOCATE allocate_b
#define FRAME 1024
#else
#define ALLOCATE allocate_a
#define FRAME 256
#endif

__attribute__((noinline)) static void *ALLOCATE(size_t size) {
    volatile char frame[FRAME];
    frame[0] = 1;
    void *p = malloc(size);
    *(volatile char *)p = frame[0];
    return p;
}
void *plugin_allocate(size_t size);
void *plugin_allocate(size_t size) {
    void *p = ALLOCATE(size);
    *(volatile char *)p = 2;
    return p;
}
