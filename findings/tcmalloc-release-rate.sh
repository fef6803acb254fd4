#!/bin/sh
# gperftools' tcmalloc, Debian's libtcmalloc-minimal4 2.10-1 (bookworm).
#
# Behaviour: TCMALLOC_RELEASE_RATE=10, the highest rate that its documents call reasonable, gives next to nothing back in
# a program that has freed its memory and idles or makes few calls: the rate counts pages that the program frees to the
# page heap from then on, and an idle program frees hardly any. TCMALLOC_AGGRESSIVE_DECOMMIT=1 gives each free span back
# when it is freed.
#
# Output seen: resident MiB after 300 MiB in blocks of 2,000 bytes were freed but for one in 1,000
#   default: 303
#   TCMALLOC_RELEASE_RATE=10: 301
#   TCMALLOC_AGGRESSIVE_DECOMMIT=1: 12
#
# Needs Debian 12 on x86-64, its sources for apt, a C compiler. Installs nothing: the package is unpacked in a temporary
# folder. Exits with 0 if the behaviour is as above: the rate saves less than a tenth, the other more than half.
set -eu

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cat >program.c <<'PROGRAM'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 150000, SIZE = 2000 };
static char *block[N];

int main(void) {
    for (int i = 0; i < N; i++) memset(block[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < N; i++)
        if (i % 1000) free(block[i]);
    /* Idle, but for a few calls. */
    for (int i = 0; i < 30; i++) {
        free(malloc(100000));
        usleep(100000);
    }
    long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2) return 2;
    printf("%ld\n", resident * sysconf(_SC_PAGESIZE) >> 20);
    return 0;
}
PROGRAM
cc -O1 -fno-builtin -o program program.c
apt-get download 'libtcmalloc-minimal4=2.10-1*' >apt.log 2>&1 || { cat apt.log; exit 2; }
dpkg-deb -x libtcmalloc-minimal4_*.deb unpacked
library=$(find unpacked -name 'libtcmalloc_minimal.so.4' | head -n 1)
run() { env "$@" LD_PRELOAD="$place/$library" ./program; }
default=$(run UNUSED=1)
rate=$(run TCMALLOC_RELEASE_RATE=10)
decommit=$(run TCMALLOC_AGGRESSIVE_DECOMMIT=1)
echo "default: $default"
echo "TCMALLOC_RELEASE_RATE=10: $rate"
echo "TCMALLOC_AGGRESSIVE_DECOMMIT=1: $decommit"
[ "$rate" -gt $((default * 9 / 10)) ] && [ "$decommit" -lt $((default / 2)) ] && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
