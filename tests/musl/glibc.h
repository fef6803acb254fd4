/* What glibc declares and musl does not, for the test programs. neap has these functions of malloc with both C
   libraries. To link a program, tests/musl.rs makes a library with empty ones, under the name of musl's. */
#include <features.h>
#include <stddef.h>
#include <stdio.h>

void *pvalloc(size_t size);
int malloc_info(int options, FILE *stream);
int malloc_trim(size_t pad);
int mallopt(int parameter, int value);
void malloc_stats(void);

/* Cases that need these are left out. */
#define RTLD_DEEPBIND 8
#define LM_ID_NEWLM -1
#define dlmopen(space, file, mode) dlopen(file, mode)
