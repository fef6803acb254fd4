/* The library that the change `unloaded_allocator` loads and unloads: a plugin that contains neap, whose helper it
   needs. */
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) void plugin_use(size_t blocks) {
    for (size_t i = 0; i < blocks; i++) {
        size_t size = (i % 8 + 1) * 200000;
        void *p = malloc(size);
        if (p) memset(p, 1, size);
        free(p);
    }
}
