#!/bin/sh
# qemu's user mode, Debian's qemu-user-static 1:7.2+dfsg (bookworm; "qemu-x86_64 version 7.2.22"). 10.0.13 and 11.1.3 do
# the same.
#
# Behaviour: mremap(p, n, n, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) moves the pages and leaves the old range mapped and
# usable, as mremap(2) says. But from then on madvise(MADV_DONTNEED) for a range with any part of the old one returns 0
# and does nothing: private anonymous memory that was written does not read as zero afterwards, as madvise(2) says it
# does. (qemu notes the old range as unmapped, and passes MADV_DONTNEED on only where all OS pages have its mark for
# private anonymous memory.) mprotect does not help; munmap and a new mmap do.
#
# Output seen:
#   Linux: before: returns 0, zero; old range: returns 0, zero; with its neighbours: returns 0, zero; mapped anew: returns 0, zero
#   qemu: before: returns 0, zero; old range: returns 0, NOT ZERO; with its neighbours: returns 0, NOT ZERO; mapped anew: returns 0, zero
#
# Needs Debian 12 or newer on x86-64, its sources for apt, a C compiler with a static C library. Installs nothing: the
# package is unpacked in a temporary folder. Exits with 0 if the behaviour is as above.
set -eu

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cat >program.c <<'END'
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { N = 1 << 20 };

static void try(const char *what, char *p, size_t size) {
    memset(p, 7, size);
    int result = madvise(p, size, MADV_DONTNEED);
    size_t i = 0;
    while (i < size && p[i] == 0) i++;
    printf("%s: returns %d, %s", what, result, i == size ? "zero" : "NOT ZERO");
}

static char *map(void *at, size_t size, int flags) {
    return mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

int main(void) {
    char *p = map(NULL, 3 * N, 0), *old = p + N;
    if (p == MAP_FAILED) return 2;
    try("before", p, 3 * N);
    if (mremap(old, N, N, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL) == MAP_FAILED) return 2;
    try("; old range", old, N);
    try("; with its neighbours", p, 3 * N);
    if (munmap(old, N) || map(old, N, MAP_FIXED) != old) return 2;
    try("; mapped anew", p, 3 * N);
    puts("");
    return 0;
}
END
cc -static -O1 -o program program.c
apt-get download 'qemu-user-static=1:7.2+dfsg*' >apt.log 2>&1 || { cat apt.log; exit 2; }
dpkg-deb -x qemu-user-static_*.deb unpacked
qemu=unpacked/usr/bin/qemu-x86_64-static
"$qemu" --version | head -n 1
printf 'Linux: ' && ./program | tee linux
printf 'qemu: ' && "$qemu" ./program | tee emulated
good='before: returns 0, zero; old range: returns 0, zero; with its neighbours: returns 0, zero; mapped anew: returns 0, zero'
bad='before: returns 0, zero; old range: returns 0, NOT ZERO; with its neighbours: returns 0, NOT ZERO; mapped anew: returns 0, zero'
[ "$(cat linux)" = "$good" ] && [ "$(cat emulated)" = "$bad" ] && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
