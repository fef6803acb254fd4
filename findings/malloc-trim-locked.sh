#!/bin/sh
# glibc's malloc_trim, Debian's libc6 2.36-9+deb12u14 (bookworm), on Linux.
#
# Behaviour: in a process that has locked its memory (mlockall), malloc_trim(0) returns 1, which its manual page calls
# "memory was actually released back to the system", and gives next to nothing back. It asks madvise(MADV_DONTNEED) for
# free pages between blocks in use, the kernel refuses that for locked memory (EINVAL), and malloc_trim does not look at
# the result. It counts what it asked for.
#
# Output seen: what malloc_trim(0) returned, and resident MiB before and after, with 90 MiB in freed blocks of 1,000 bytes
#   not locked: 1, 94 to 2
#   locked: 1, 95 to 95
#
# Needs Debian 12 on x86-64, its sources for apt, a C compiler, root. Installs nothing: the package is unpacked in a
# temporary folder. Exits with 0 if the behaviour is as above.
set -eu

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cat >program.c <<'PROGRAM'
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 96000, SIZE = 1000 };
static char *blocks[BLOCKS];

static long resident(void) {
    long all, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &pages) != 2) exit(2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE) >> 20;
}

int main(int count, char **arguments) {
    (void)arguments;
    if (count > 1 && mlockall(MCL_CURRENT | MCL_FUTURE)) return 2;
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    /* The last block stays, so that the top of the heap does not go back by itself. */
    for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
    long before = resident();
    int result = malloc_trim(0);
    printf("%d, %ld to %ld\n", result, before, resident());
    return 0;
}
PROGRAM
cc -O1 -fno-builtin -o program program.c
apt-get download 'libc6=2.36-9+deb12u14' >apt.log 2>&1 || { cat apt.log; exit 2; }
dpkg-deb -x libc6_*.deb unpacked
libraries=$(dirname "$(find "$place/unpacked" -name 'libc.so.6' | head -n 1)")
run() { "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" ./program "$@"; }
free=$(run)
locked=$(run locked)
echo "not locked: $free"
echo "locked: $locked"
changed() { echo "$1" | awk '{ exit !($1 == "1," && $2 - $4 > $2 / 2) }'; }
changed "$free" && ! changed "$locked" && [ "${locked%%,*}" = 1 ] && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
