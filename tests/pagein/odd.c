// Programs that are hard to trace, one for each case.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// Touches this many pages.
static char *touch(size_t pages) {
    char *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // So that each page faults, also where the system uses huge pages for all large mappings.
    madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i++) memory[i * 4096] = 1;
    return memory;
}

// Makes a function that touches a page, writes its name into a perf map that belongs to `owner`, and calls it.
static void compile(uid_t owner) {
    static const unsigned char code[] = {0xc6, 0x07, 0x01, 0xc3};  // mov byte ptr [rdi], 1; ret
    char *memory = mmap(0, 2 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, code, sizeof code);
    char name[40];
    snprintf(name, sizeof name, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(name, "w");
    if (!map || fprintf(map, "%lx 4 compiled\n", (unsigned long)memory) < 0) exit(3);
    if (fchown(fileno(map), owner, -1) || fclose(map)) exit(4);
    ((void (*)(char *))memory)(memory + 4096);
}

static void on_interrupt(int number) {
    (void)number;
    _exit(7);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "touch")) {
        touch(1000);
    } else if (!strcmp(what, "many")) {
        // Endless faults with little memory.
        long rounds = argc > 2 ? atol(argv[2]) : 110;
        for (long i = 0; i < rounds; i++) munmap(touch(1000), 1000 * 4096);
    } else if (!strcmp(what, "churn")) {
        // Endless mappings, each of another size, with one page touched in each.
        long rounds = argc > 2 ? atol(argv[2]) : 1000;
        unsigned long random = 1;
        for (long i = 0; i < rounds; i++) {
            random = random * 6364136223846793005ul + 1442695040888963407ul;
            size_t length = ((random >> 33) % 64 + 1) * 4096;
            char *memory = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memory[0] = 1;
            munmap(memory, length);
        }
    } else if (!strcmp(what, "signal")) {
        touch(100);
        kill(getpid(), SIGTERM);
    } else if (!strcmp(what, "crash")) {
        touch(100);
        *(volatile char *)16 = 1;
    } else if (!strcmp(what, "closes")) {
        for (int fd = 0; fd < 1024; fd++) close(fd);
        touch(1000);
    } else if (!strcmp(what, "daemon") || !strcmp(what, "short-daemon")) {
        if (daemon(1, 0) == 0) {
            touch(500);
            sleep(what[0] == 'd' ? 60 : 3);
        }
    } else if (!strcmp(what, "forks")) {
        for (int i = 0; i < 20; i++) {
            if (fork() == 0) {
                touch(50);
                _exit(0);
            }
        }
        while (wait(0) > 0) continue;
    } else if (!strcmp(what, "interrupt")) {
        signal(SIGINT, on_interrupt);
        touch(100);
        write(1, "ready\n", 6);
        for (;;) pause();
    } else if (!strcmp(what, "works")) {
        // Maps and touches a little all the time.
        for (int i = 0; i < 1000; i++) {
            touch(10);
            usleep(5000);
        }
    } else if (!strcmp(what, "compile")) {
        compile(argc > 2 ? atoi(argv[2]) : (int)getuid());
    } else if (!strcmp(what, "kinds")) {
        char *memory = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        volatile char read = memory[0];
        memory[0] = read + 1;
        memory[4096] = 1;
        printf("%p\n", (void *)memory);
    } else {
        return 2;
    }
    return 0;
}
