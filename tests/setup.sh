#!/bin/sh
# Installs from Debian's packages what the tests of whole programs need and what is missing here. Run as root.
# The tests run without it too: what is missing is skipped, loudly.
set -eu

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

want gcc cc
want g++ c++
want binutils readelf
want python3 /usr/bin/python3
want libpython3.11-testsuite /usr/lib/python3.*/test/test_list.py
want git git
want perl perl
want sqlite3 sqlite3
want redis-server redis-server
want redis-tools redis-benchmark
want nginx-light /usr/sbin/nginx
want curl curl
want apache2-utils ab
want postgresql /usr/lib/postgresql/*/bin/pgbench
want nodejs node
want default-jdk-headless javac
want golang-go go /usr/local/go/bin/go
want chromium chromium
want openssh-server /usr/sbin/sshd
want openssh-client ssh
want util-linux setpriv
want linux-perf perf
want gcc-multilib /usr/lib32/crt1.o /usr/lib/i386-linux-gnu/crt1.o
want valgrind valgrind
want gdb gdb
want stress-ng stress-ng
# The lab: another two allocators, system calls, a virtual environment.
want libjemalloc2 /usr/lib/*/libjemalloc.so.2
want libmimalloc2.0 /usr/lib/*/libmimalloc.so.2
want strace strace
want python3-venv /usr/share/doc/python3-venv

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
    # One package that this system does not have shall not cost the others.
    for package in $missing; do
        RUNLEVEL=1 apt-get install -q -y --no-install-recommends "$package" ||
            echo "tests/setup.sh: $package cannot be installed; its tests will be skipped"
    done
fi
