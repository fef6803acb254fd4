/* hold PROCS HOW: joins a cgroup by its cgroup.procs, has 64 MiB held in one way, prints its process, and waits for the
   end of its input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <unistd.h>
#define MIB ((size_t)1 << 20)

static char block[MIB];

static void write_all(int file) {
    for (int i = 0; i < 64; i++) write(file, block, MIB);
}

int main(int argc, char **argv) {
    FILE *procs = fopen(argv[1], "w");
    fprintf(procs, "%d", getpid());
    fclose(procs);
    memset(block, 1, MIB);
    const char *how = argv[2];
    if (!strcmp(how, "memfd")) write_all(memfd_create("cache", 0));
    if (!strcmp(how, "deleted")) {
        char path[64];
        sprintf(path, "/dev/shm/neap-why-deleted-%d", getpid());
        int file = open(path, O_CREAT | O_RDWR, 0600);
        unlink(path);
        write_all(file);
    }
    if (!strcmp(how, "segment")) {
        char *at = shmat(shmget(IPC_PRIVATE, 64 * MIB, IPC_CREAT | 0600), 0, 0);
        memset(at, 1, 64 * MIB);
        shmdt(at);
    }
    if (!strcmp(how, "pipes")) {
        struct rlimit limit = {4096, 4096};
        setrlimit(RLIMIT_NOFILE, &limit);
        for (int i = 0, ends[2]; i < 1024 && !pipe2(ends, O_NONBLOCK); i++) write(ends[1], block, 65536);
    }
    /* One OS page of each huge page stays. */
    if (!strcmp(how, "huge")) {
        char *at = mmap(0, 66 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        at = (char *)(((size_t)at + 2 * MIB - 1) & -(2 * MIB));
        madvise(at, 64 * MIB, MADV_HUGEPAGE);
        memset(at, 1, 64 * MIB);
        for (size_t i = 0; i < 64 * MIB; i += 2 * MIB) madvise(at + i + 4096, 2 * MIB - 4096, MADV_DONTNEED);
    }
    printf("%d\n", getpid());
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
