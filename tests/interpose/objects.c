/* A library that defines the function which lists objects, and passes calls on, as fakechroot does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

typedef int (*callback)(struct dl_phdr_info *, size_t, void *);
int dl_iterate_phdr(callback f, void *data) {
    static int (*next)(callback, void *);
    if (!next) next = (int (*)(callback, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return next(f, data);
}
