/* Declares for the test programs what glibc declares and musl does not. neap defines the functions of malloc on both;
   the program is linked with empty ones in a stub named like musl (tests/musl.rs). */
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
