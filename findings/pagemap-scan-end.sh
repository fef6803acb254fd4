#!/bin/sh
# Linux 6.18 (6.18.44): the ioctl PAGEMAP_SCAN of /proc/PID/pagemap, which is there since Linux 6.7.
#
# Behaviour: with room for more than 512 regions in one call, `walk_end` can be before regions that the call has returned,
# although the scan has reached the end of the range. The kernel collects 512 regions at a time, notes where it stopped to
# hand these over, goes on, and keeps that note if the rest needs no further stop. A caller that continues at `walk_end`, as
# the description of the call says ("the address at which the scan ended"), gets regions twice: sums of resident memory are
# too large. With room for 512 regions or fewer, walk_end is right; otherwise continue at the end of the last region if
# that is higher.
#
# Output seen, for ranges in which every other OS page is resident, with room for 1,024 regions; in OS pages
#   500 regions: walk_end 1000, the last region ends at 999
#   600 regions: walk_end 1024, the last region ends at 1199
#   1000 regions: walk_end 1024, the last region ends at 1999
#
# Needs Linux 6.7 or later on x86-64, a C compiler. Exits with 0 if the behaviour is as above.
set -eu

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cat >program.c <<'PROGRAM'
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

struct region { uint64_t start, end, categories; };
struct argument {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
enum { PAGE = 4096, ROOM = 1024, PRESENT = 1 << 3 };

/* Whether walk_end is before the end of the last region. */
static int is_before(int file, long number) {
    static struct region regions[ROOM];
    long length = 2 * number * PAGE;
    char *at = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < number; i++) at[2 * i * PAGE] = 1;
    uint64_t start = (uintptr_t)at;
    struct argument argument = {
        .size = sizeof argument, .start = start, .end = start + length, .vec = (uintptr_t)regions, .vec_len = ROOM,
        .category_anyof_mask = PRESENT, .return_mask = PRESENT,
    };
    int count = ioctl(file, _IOWR('f', 16, struct argument), &argument);
    if (count != number) { printf("%d regions of %ld\n", count, number); return -1; }
    uint64_t last = regions[count - 1].end;
    printf("%ld regions: walk_end %llu, the last region ends at %llu\n", number,
           (unsigned long long)(argument.walk_end - start) / PAGE, (unsigned long long)(last - start) / PAGE);
    return argument.walk_end < last;
}

int main(void) {
    int file = open("/proc/self/pagemap", O_RDONLY);
    return is_before(file, 500) == 0 && is_before(file, 600) == 1 && is_before(file, 1000) == 1 ? 0 : 1;
}
PROGRAM
cc -O1 -o program program.c
./program && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
