/* A plugin; with -DOTHER another one, whose code is at the same place in its file. */
#include <stdlib.h>

#ifdef OTHER
#define ALLOCATE allocate_b
#else
#define ALLOCATE allocate_a
#endif

__attribute__((noinline)) static void *ALLOCATE(size_t size) {
    void *p = malloc(size);
    *(volatile char *)p = 1;
    return p;
}
void *plugin_allocate(size_t size);
void *plugin_allocate(size_t size) {
    void *p = ALLOCATE(size);
    *(volatile char *)p = 2;
    return p;
}
