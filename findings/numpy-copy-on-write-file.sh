#!/bin/sh
# numpy 1.26.4 from PyPI, on Linux 6.18.
#
# Behaviour: an array of numpy.memmap(mode="c") never changes its file: what is assigned to it is "kept in memory". Over a
# sparse file in memory (tmpfs, so also /dev/shm, and memfd) it costs twice that memory, and the file grows all the same. A
# first write to a hole makes Linux allocate the OS page of the file, zeros, only to copy it to the process. The file's pages
# are in no process's Rss; they stay when the array is gone, until the file is removed. On ext4 the holes stay holes: the
# page cache has the zeros, and gives them back when memory is short.
#
# Output seen: MiB of the file on its file system before and after 64 MiB of the array were assigned, and private memory
# that the process has for it
#   before: 0
#   after: 64
#   private: 64
#   contents of the file changed: no
#
# Needs Linux with /dev/shm (tmpfs), Python 3.9 to 3.12 with venv and pip. Installs numpy in a temporary folder. Exits with 0
# if the behaviour is as above.
set -eu

place=$(mktemp -d)
file=/dev/shm/copy-on-write-$$
trap 'rm -rf "$place" "$file"' EXIT
cd "$place"

python3 -m venv env
env/bin/pip install --quiet 'numpy==1.26.4' >pip.log 2>&1 || { cat pip.log; exit 2; }
cat >program.py <<'PROGRAM'
import os, sys
import numpy

path, size = sys.argv[1], 64 << 20
with open(path, "wb") as file:
    file.truncate(size)
on_disk = lambda: os.stat(path).st_blocks * 512 >> 20
print("before:", on_disk())
array = numpy.memmap(path, dtype="u1", mode="c")
array[:] = 1
print("after:", on_disk())
inside, private = False, 0
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        inside = line.rstrip().endswith(path)
    elif inside and words[0] == "Anonymous:":
        private += int(words[1]) >> 10
print("private:", private)
print("contents of the file changed:", "yes" if open(path, "rb").read().count(0) != size else "no")
PROGRAM
env/bin/python program.py "$file" | tee result
printf 'before: 0\nafter: 64\nprivate: 64\ncontents of the file changed: no\n' | cmp -s - result && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
