// Faults of kinds that depend on the system, one for each case. Prints the addresses.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, PAGES = 16, HUGE = 2 << 20 };

// Opens a file with this name and some pages of bytes, for reading and writing.
static int file(const char *name) {
    static char bytes[PAGES * PAGE];
    memset(bytes, 7, sizeof bytes);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes) exit(2);
    return fd;
}

static volatile char *map(size_t bytes, int protection, int flags, int fd) {
    char *start = mmap(0, bytes, protection, flags, fd, 0);
    if (start == MAP_FAILED) exit(3);
    return start;
}

// A page of a file that is only on disk.
static void major(const char *name) {
    int fd = file(name);
    if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) SKIP("the file cannot be dropped from memory");
    volatile char *memory = map(PAGES * PAGE, PROT_READ, MAP_PRIVATE, fd);
    unsigned char resident[PAGES];
    if (mincore((void *)memory, PAGES * PAGE, resident)) exit(4);
    for (int i = 0; i < PAGES; i++)
        if (resident[i] & 1) SKIP("the file stays in memory: it is on no disk");
    (void)memory[3 * PAGE];
    printf("%p\n", (void *)(memory + 3 * PAGE));
}

// A huge page.
static void huge(void) {
    volatile char *memory = map(2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memory += -(uintptr_t)memory % HUGE;
    if (madvise((void *)memory, HUGE, MADV_HUGEPAGE)) SKIP("the system has no transparent huge pages");
    memory[5 * PAGE] = 1;
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    long kib = 0;
    while (rollup && fgets(line, sizeof line, rollup)) sscanf(line, "AnonHugePages: %ld kB", &kib);
    if (kib == 0) SKIP("no huge page can be had");
    printf("%p\n", (void *)(memory + 5 * PAGE));
}

// Shared memory without a file, and a page of a file that is read and then written.
static void shared(const char *name) {
    volatile char *memory = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    memory[PAGE] = 1;
    volatile char *of_file = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file(name));
    char read = of_file[2 * PAGE];
    of_file[2 * PAGE] = read + 1;
    printf("%p %p\n", (void *)(memory + PAGE), (void *)(of_file + 2 * PAGE));
}

int main(int argc, char **argv) {
    if (argc < 3) return 1;
    if (!strcmp(argv[1], "major")) major(argv[2]);
    if (!strcmp(argv[1], "huge")) huge();
    if (!strcmp(argv[1], "shared")) shared(argv[2]);
    return 0;
}
