#!/bin/sh
# The kernel: Linux 6.18, x86-64.
#
# Behaviour: the column "rss" of /proc/sysvipc/shm, in bytes, is 512 times too large for a System V segment of huge pages
# of 2 MiB (SHM_HUGETLB): it multiplies a number of OS pages by the OS pages of a huge page once more. So a full segment
# of 4 MiB holds "2 GiB", while the pool of huge pages has two pages less, and /proc/PID/smaps says 4 MiB.
# A segment of ordinary pages is right.
#
# Output seen:
#   segment of 4096 KiB, rss 2097152 KiB, pages taken from the pool: 2
#
# Needs root, 4 MiB of free memory for two huge pages, python3 (any version). Changes the size of the pool of 2 MiB pages
# and puts it back. Exits with 0 if the behaviour is as above.
set -eu

pool=/sys/kernel/mm/hugepages/hugepages-2048kB
before=$(cat $pool/nr_hugepages)
trap 'echo "$before" >$pool/nr_hugepages' EXIT
echo $((before + 2)) >$pool/nr_hugepages
free=$(cat $pool/free_hugepages)
python3 - "$free" <<'PROGRAM'
import ctypes, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
size, SHM_HUGETLB, IPC_CREAT, IPC_RMID = 4 << 20, 0o4000, 0o1000, 0
number = libc.shmget(0, ctypes.c_size_t(size), IPC_CREAT | SHM_HUGETLB | 0o600)
if number < 0:
    sys.exit("shmget fails: %d" % ctypes.get_errno())
try:
    at = libc.shmat(number, None, 0)
    ctypes.memset(at, 1, size)
    lines = [line.split() for line in open("/proc/sysvipc/shm")]
    names = lines[0]
    rss = next(int(line[names.index("rss")]) for line in lines[1:] if int(line[1]) == number)
    pages = int(sys.argv[1]) - int(open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read())
finally:
    libc.shmctl(number, IPC_RMID, None)
print("segment of %d KiB, rss %d KiB, pages taken from the pool: %d" % (size >> 10, rss >> 10, pages))
if rss == 512 * size and pages == 2:
    print("as described")
    sys.exit(0)
print("the behaviour has changed")
sys.exit(1)
PROGRAM
