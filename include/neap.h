/* neap: a drop-in malloc for Linux.
 *
 * The malloc family needs no header of neap's: link with -lneap (or preload libneap.so) and use <stdlib.h>,
 * <malloc.h> and C++'s operators new and delete. Here is what neap adds.
 *
 * All functions may be called from any thread. None sets errno.
 */
#ifndef NEAP_H
#define NEAP_H

#include <stddef.h>

#define NEAP_VERSION_MAJOR 0
#define NEAP_VERSION_MINOR 1
#define NEAP_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* Gives the memory of free ranges back to the system; returns the bytes of address space given back (resident
 * memory falls by what of them was resident). Blocks in threads' caches and in partly used slabs stay. Linear in the
 * number of free ranges, with one system call for each. */
size_t neap_purge(void);

/* The version of the library that is running, as "0.1.0": a string that lives for ever. */
const char *neap_version(void);

/* C23, which C libraries may not declare yet: free for a block whose size (and alignment) the program knows. */
#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 202311L
void free_sized(void *block, size_t size);
void free_aligned_sized(void *block, size_t alignment, size_t size);
#endif

#ifdef __cplusplus
}
#endif

#endif
