#!/bin/sh
# strace, Debian's strace 6.1-0.1 (bookworm), on Linux 6.18.
#
# Behaviour: strace copies memory that the traced process shares with its parent since a fork. A child that writes such
# memory to a file only reads it, and has no memory of its own for it. When strace prints the data (-s), it reads them
# with process_vm_readv, and Linux (from 5.19 on) gives each OS page that is read so to the child alone: the child's
# private memory grows by all that strace has printed. smaps calls these pages Private_Clean, though they are anonymous and
# no file has their contents. What reads /proc/PID/mem, as gdb does, copies nothing.
#
# Output seen: MiB private to a child that has written 32 MiB of its parent's to /dev/null, and of its reader
#   alone: 0
#   strace, data not printed (-s 0): 0
#   strace, all data printed (-s 40000000): 32
#   read by dd from /proc/PID/mem: 0
#
# Needs Debian 12, its sources for apt, a C compiler. Installs nothing: the package is unpacked in a temporary folder.
# Exits with 0 if the behaviour is as above.
set -eu

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cat >program.c <<'PROGRAM'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 32 << 20 };

/* Private bytes of the block, by the kernel. */
static long private_bytes(char *block) {
    char line[512];
    unsigned long start, end;
    long sum = 0, kb;
    int inside = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start <= (unsigned long)block && (unsigned long)block < end;
        else if (inside && (sscanf(line, "Private_Dirty: %ld", &kb) == 1 || sscanf(line, "Private_Clean: %ld", &kb) == 1))
            sum += kb << 10;
    }
    return sum;
}

int main(int count, char **arguments) {
    char *block = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(block, SIZE, MADV_NOHUGEPAGE);
    memset(block, 1, SIZE);
    if (fork() == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (write(null, block, SIZE) != SIZE) _exit(2);
        if (count > 1) {
            char command[200];
            snprintf(command, sizeof command,
                     "dd if=/proc/%d/mem of=copy bs=1M skip=%ld count=32 iflag=skip_bytes status=none", getpid(), (long)block);
            if (system(command)) _exit(2);
        }
        FILE *result = fopen("result", "w");
        fprintf(result, "%ld\n", private_bytes(block) >> 20);
        fclose(result);
        _exit(0);
    }
    int status;
    wait(&status);
    return status != 0;
}
PROGRAM
cc -O1 -o program program.c
apt-get download 'strace=6.1-0.1' >apt.log 2>&1 || { cat apt.log; exit 2; }
dpkg-deb -x strace_*.deb unpacked
strace=$place/unpacked/usr/bin/strace
./program && alone=$(cat result)
"$strace" -f -e trace=write -s 0 -o /dev/null ./program && short=$(cat result)
"$strace" -f -e trace=write -s 40000000 -o /dev/null ./program && whole=$(cat result)
./program read && read=$(cat result)
echo "alone: $alone"
echo "strace, data not printed (-s 0): $short"
echo "strace, all data printed (-s 40000000): $whole"
echo "read by dd from /proc/PID/mem: $read"
[ "$alone" = 0 ] && [ "$short" = 0 ] && [ "$whole" -ge 30 ] && [ "$read" = 0 ] && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
