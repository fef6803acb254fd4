#!/bin/sh
# Installs from Debian's packages what the tests of whole programs need and what is missing here. Run as root:
# `setup.sh gate` for the tests of the gate, `setup.sh` for all. The tests also run without it: a test
# whose programs are missing is skipped, and says so.
set -eu

tier=${1:-long}

missing=""
# want PACKAGE COMMAND-OR-FILE...: PACKAGE is missing unless one of the others is there.
want() {
    package=$1
    shift
    for thing in "$@"; do
        if [ -e "$thing" ] || command -v "$thing" >/dev/null 2>&1; then return 0; fi
    done
    missing="$missing $package"
}

# want_long: the same for what only the long tier needs.
want_long() {
    if [ "$tier" != gate ]; then want "$@"; fi
}

want gcc cc
want libc6-dev /usr/include/stdio.h
want g++ c++
want binutils readelf
want lld ld.lld
want musl-tools musl-gcc
want mold mold
want cmake cmake
want make make
want python3 /usr/bin/python3
want perl perl
want util-linux setpriv
want linux-perf perf
want gcc-multilib /usr/lib32/crt1.o /usr/lib/i386-linux-gnu/crt1.o
want gdb gdb
want strace strace
want prometheus prometheus
want valgrind valgrind
# For 64-bit Arm. Debian's cross GCC cannot be installed beside gcc-multilib.
want clang clang
want binutils-aarch64-linux-gnu aarch64-linux-gnu-ld
want libc6-dev-arm64-cross /usr/aarch64-linux-gnu/include/stdio.h
want libstdc++-12-dev-arm64-cross /usr/lib/gcc-cross/aarch64-linux-gnu/*/libstdc++.so
want qemu-user-static qemu-aarch64-static
want_long debootstrap debootstrap
want_long libpython3.11-testsuite /usr/lib/python3.*/test/test_list.py
want_long lintian lintian
want_long rpm rpmbuild
want_long debootstrap debootstrap
want_long git git
want_long sqlite3 sqlite3
want_long redis-server redis-server
want_long redis-tools redis-benchmark
want_long nginx-light /usr/sbin/nginx
want_long curl curl
want_long apache2-utils ab
want_long postgresql /usr/lib/postgresql/*/bin/pgbench
want_long nodejs node
want_long default-jdk-headless javac
want_long golang-go go /usr/local/go/bin/go
want_long chromium chromium
want_long mariadb-server /usr/sbin/mariadbd
want_long ruby ruby
want_long php-cli php
want_long lua5.4 lua5.4
want_long gawk gawk
want_long vim vim
want_long memcached memcached
want_long haproxy /usr/sbin/haproxy
want_long apache2 /usr/sbin/apache2
want_long debootstrap debootstrap
want_long qemu-system-x86 qemu-system-x86_64
want_long qemu-system-arm qemu-system-aarch64
want_long openssh-server /usr/sbin/sshd
want_long openssh-client ssh
want_long stress-ng stress-ng
want_long libfaketime /usr/lib/*/faketime/libfaketime.so.1
# The lab: other allocators, a virtual environment.
want_long libjemalloc2 /usr/lib/*/libjemalloc.so.2
want_long libgoogle-perftools4 /usr/lib/*/libtcmalloc.so.4
want_long libmimalloc2.0 /usr/lib/*/libmimalloc.so.2
want_long python3-venv /usr/share/doc/python3-venv

if [ -z "$missing" ]; then
    echo "tests/setup.sh: nothing is missing"
    exit 0
fi
echo "tests/setup.sh: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# In runlevel 1 the packages do not start their servers.
# shellcheck disable=SC2086
if ! RUNLEVEL=1 apt-get install -q -y --no-install-recommends $missing; then
    # One package that this system lacks must not prevent the others.
    for package in $missing; do
        RUNLEVEL=1 apt-get install -q -y --no-install-recommends "$package" ||
            echo "tests/setup.sh: $package cannot be installed; its tests will be skipped"
    done
fi
