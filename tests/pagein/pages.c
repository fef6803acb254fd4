// Reads 64 pages of a file, and 64 pages of its own constants, one byte of each.
#include <fcntl.h>
#include <sys/mman.h>

#define PAGES 64

static const char constants[PAGES * 4096] __attribute__((aligned(4096))) = {1, [PAGES * 4096 - 1] = 2};

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    int fd = open(argv[1], O_RDONLY);
    volatile const char *file = mmap(0, PAGES * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) return 2;
    for (int i = 0; i < PAGES; i++) {
        (void)file[i * 4096];
        (void)((volatile const char *)constants)[i * 4096];
    }
    return 0;
}
