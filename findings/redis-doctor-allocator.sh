#!/bin/sh
# Redis, Debian's redis-tools 5:7.0.15-1~deb12u10 (bookworm), which is linked with the shared libjemalloc2 5.3.0-1, under
# another malloc: mimalloc 2.0.9+ds-2 by LD_PRELOAD.
#
# Behaviour: INFO memory names the allocator that Redis was compiled for, not the one that serves malloc, and its
# allocator_* figures are those of jemalloc, which is loaded but empty: allocator_allocated is far below used_memory,
# and "rss overhead" is nearly all of the process. From these figures MEMORY DOCTOR reports "High process RSS overhead
# ... may be due to Lua scripts or Modules", though there are none, and the same data give no such report on jemalloc.
# MEMORY PURGE answers OK, and purges the empty jemalloc.
#
# Output seen:
#   jemalloc: mem_allocator:jemalloc-5.3.0, allocator_allocated is 103 % of used_memory, doctor names RSS overhead: 0
#   mimalloc: mem_allocator:jemalloc-5.3.0, allocator_allocated is 0 % of used_memory, doctor names RSS overhead: 1
#   mimalloc: MEMORY PURGE answers OK
#
# Needs Debian 12 on x86-64 and its sources for apt. Installs nothing: packages are unpacked in a temporary folder, and
# the server listens on a socket there. Exits with 0 if the behaviour is as above.
set -eu

place=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$place"' EXIT
cd "$place"

apt-get download 'redis-tools=5:7.0.15-1~deb12u*' 'libjemalloc2=5.3.0-1*' 'libmimalloc2.0=2.0.9+ds-2*' liblzf1 \
    libatomic1 libssl3 libsystemd0 >apt.log 2>&1 || { cat apt.log; exit 2; }
for package in *.deb; do dpkg-deb -x "$package" unpacked; done
libraries=$place/unpacked/usr/lib/x86_64-linux-gnu:$place/unpacked/lib/x86_64-linux-gnu
mimalloc=$(find "$place/unpacked" -name 'libmimalloc.so.2.0' | head -n 1)
cli() { LD_LIBRARY_PATH=$libraries unpacked/usr/bin/redis-cli -s "$place/socket" "$@" | tr -d '\r'; }

# Debian's redis-check-rdb is the server under another name; called by the server's name it serves.
ln -s "$place/unpacked/usr/bin/redis-check-rdb" redis-server

try() {
    LD_LIBRARY_PATH=$libraries LD_PRELOAD=$2 ./redis-server --port 0 --unixsocket "$place/socket" --save '' \
        --dir "$place" >server.log 2>&1 &
    server=$!
    for _ in $(seq 100); do [ "$(cli ping 2>/dev/null)" = PONG ] && break || sleep 0.1; done
    cli eval "for i=1,60000 do redis.call('set','key:'..i,string.rep('x',100)) end" 0 >/dev/null
    # The figures are taken ten times a second.
    sleep 1
    cli info memory >info
    value() { sed -n "s/^$1://p" info; }
    percent=$((100 * $(value allocator_allocated) / $(value used_memory)))
    overhead=$(cli memory doctor | grep -c 'High process RSS overhead' || true)
    allocator=$(value mem_allocator)
    purge=$(cli memory purge)
    echo "$1: mem_allocator:$allocator, allocator_allocated is $percent % of used_memory, doctor names RSS overhead: $overhead"
    kill "$server"
    wait "$server" || true
    server=
}
try jemalloc ''
[ "$percent" -ge 90 ] && [ "$overhead" = 0 ] || { echo "the behaviour has changed"; exit 1; }
try mimalloc "$mimalloc"
echo "mimalloc: MEMORY PURGE answers $purge"
case $allocator in jemalloc*) ;; *) percent=100 ;; esac
[ "$percent" -le 10 ] && [ "$overhead" = 1 ] && [ "$purge" = OK ] && echo "as described" && exit 0
echo "the behaviour has changed"
exit 1
