/* The library that the actor `libraries` loads: it allocates when it is loaded, used and unloaded, and in each thread.
   */
#include <stdlib.h>
#include <string.h>

static __thread char storage[256];
static void *kept;

__attribute__((constructor)) static void load(void) { kept = calloc(1, 5000); }
__attribute__((destructor)) static void unload(void) { free(kept); }

void *plugin_make(size_t size) {
    storage[0]++;
    void *p = malloc(size);
    if (p) memset(p, 1, size);
    return p;
}
