/* A library to load: its constructor allocates, its destructor frees and allocates, and it hands blocks out. */
#include "check.h"

static char *block, *table[50];
static __thread char *per_thread;

__attribute__((constructor)) static void on_load(void) {
    block = malloc(300);
    CHECK(block);
    fill(block, 300, 9);
    for (int i = 0; i < 50; i++) CHECK((table[i] = malloc(i * 400)));
}
__attribute__((destructor)) static void on_unload(void) {
    CHECK_FILL(block, 300, 9);
    free(block);
    for (int i = 0; i < 50; i++) free(table[i]);
    char *late = calloc(10, 100);
    CHECK(late);
    free(late);
    free(per_thread);
}

char *made_by_constructor(void) { return block; }
/* A block of whatever malloc this library is bound to. */
void *make(size_t size) { return malloc(size); }
void *make_aligned(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
void unmake(void *p) { free(p); }
/* A block that the C library makes. */
char *copy(const char *text) { return strdup(text); }
void *malloc_address(void) { return (void *)malloc; }
void touch_tls(void) {
    free(per_thread);
    CHECK((per_thread = malloc(64)));
}
