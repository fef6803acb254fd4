#!/bin/sh
# Records the heaps in crates/heaps/tests/fixtures again, each with what the program printed of its own heap. Needs root for
# other releases' glibc (made with: debootstrap --variant=minbase --include=gcc,libc6-dev RELEASE DIR).
#
# record.sh NAME RELEASE_DIR             glibc of that release
# record.sh NAME / PROGRAM [VARIABLE=VALUE...]
#                                        another allocator: busy.c linked with it, or with LD_PRELOAD=LIBRARY
# jemalloc is recorded with MALLOC_CONF=tcache:false, so that its live blocks can be compared exactly.
set -e
name=$1 root=$2 program=$3
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../crates/heaps/tests/fixtures/$name.heap
truth=$(mktemp) input=$(mktemp -u)
mkfifo "$input"
if [ "$root" = / ]; then
    shift 3
    env "$@" "$program" 2 300 other <"$input" >"$truth" &
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
