#!/bin/sh
# psutil 7.1.3 (PyPI) and ps of procps, on Linux 6.18.
#
# Behaviour: a process whose first thread has ended (pthread_exit in main, as daemons do) goes on with its other threads,
# and keeps all its memory. The kernel then has the memory, program and mappings of the process only in the files of
# those threads: /proc/PID/statm says 0 and /proc/PID/maps is empty. psutil calls such a process a zombie, with an RSS of
# 0, and raises ZombieProcess ("PID still exists but it's a zombie") for its mappings and its program, though it has
# threads that run. ps has 0 too. By the number of another thread, both know all of it. A sum over processes, or a
# supervisor that restarts at a limit of memory, misses it.
#
# Output seen:
#   psutil, process: zombie, 2 threads, 0 MiB, mappings: ZombieProcess
#   psutil, by the number of its second thread: sleeping, 41 MiB
#   ps, process: 0 MiB
#
# Needs Python 3 with venv, PyPI, a C compiler, ps. Installs in a temporary folder. Exits with 0 if the behaviour is as
# above.
set -eu

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv tools
tools/bin/pip install -q --disable-pip-version-check 'psutil==7.1.3'

cat >daemon.c <<'PROGRAM'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends with its input. */
static void *serve(void *unused) {
    char byte;
    memset(malloc(40 << 20), 1, 40 << 20);
    printf("%d %d\n", getpid(), gettid());
    fflush(stdout);
    while (read(0, &byte, 1) == 1) {}
    _exit(0);
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, serve, 0);
    pthread_exit(0);
}
PROGRAM
cc -D_GNU_SOURCE -O0 -pthread -o daemon daemon.c

cat >look.py <<'PROGRAM'
import psutil, subprocess, sys, time

daemon = subprocess.Popen(["./daemon"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid, tid = map(int, daemon.stdout.readline().split())
process, thread = psutil.Process(pid), psutil.Process(tid)
while process.status() != psutil.STATUS_ZOMBIE and daemon.poll() is None:
    time.sleep(0.01)
mib = lambda of: of.memory_info().rss >> 20
try:
    mappings = str(len(process.memory_maps()))
except psutil.ZombieProcess:
    mappings = "ZombieProcess"
by_ps = int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) >> 10
print(f"psutil, process: {process.status()}, {process.num_threads()} threads, {mib(process)} MiB, mappings: {mappings}")
print(f"psutil, by the number of its second thread: {thread.status()}, {mib(thread)} MiB")
print(f"ps, process: {by_ps} MiB")
same = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() == 2 and mib(process) == 0
same = same and mappings == "ZombieProcess" and mib(thread) >= 40 and by_ps == 0
daemon.stdin.close()
daemon.wait()
print("as described" if same else "the behaviour has changed")
sys.exit(not same)
PROGRAM
tools/bin/python look.py
