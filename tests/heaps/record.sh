#!/bin/sh
# Records the heaps in crates/heaps/tests/fixtures again, each with what the program printed of its own heap. Needs root for
# other releases' glibc (made with: debootstrap --variant=minbase --include=gcc,libc6-dev RELEASE DIR).
#
# record.sh NAME RELEASE_DIR             glibc of that release
# record.sh NAME / PROGRAM [VARIABLE=VALUE...]
#                                        another allocator: busy.c linked with it, or with LD_PRELOAD=LIBRARY
# jemalloc-5.1, -5.2 and -5.3 are recorded with MALLOC_CONF=tcache:false, so that their live blocks can be compared without
# the caches of threads. jemalloc-5.3-57 is Debian 13's library with its caches. jemalloc-5.2-57 is configured with
# --with-lg-vaddr=57; it, mimalloc-3.0 (Debian 13), -3.4, -3.6 and -2.0-cross (Debian 12) run cross.c, whose threads free
# blocks of each other, with BLOCKS=100. mimalloc-3.6-old runs old.c.
set -e
name=$1 root=$2 program=$3
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../crates/heaps/tests/fixtures/$name.heap
truth=$(mktemp) input=$(mktemp -u)
mkfifo "$input"
if [ "$root" = / ]; then
    shift 3
    env "$@" "$program" 2 "${BLOCKS:-300}" other <"$input" >"$truth" &
else
    cp "$here/busy.c" "$root/tmp/busy.c"
    chroot "$root" gcc -O1 -pthread -o /tmp/busy /tmp/busy.c
    chroot "$root" /tmp/busy 3 400 <"$input" >"$truth" &
fi
pid=$!
exec 3>"$input"
until grep -q ready "$truth"; do sleep 0.1; done
cargo run --quiet --release -p neap-heaps --example record -- "$pid" "$out" "$truth"
exec 3>&-
wait "$pid"
rm "$truth" "$input"
ls -l "$out"
