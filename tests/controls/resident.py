"""Compares what malloc_info reports as neap's with what the kernel counts, in real programs that are idle.

The library is the argument. Each program is started on it, works, and rests; its main thread is stopped and calls
malloc_info, and /proc/PID/smaps is read meanwhile. The sums of the report's elements must agree within 2 % with what the
kernel counts (resident or swapped) in neap's mappings: the arenas with their tables, and the page map. All other
resident memory of the process is not neap's: libraries, stacks, static data, other mappings of the program.
"""
import os, re, shutil, signal, subprocess, sys, tempfile, time
import xml.etree.ElementTree as tree

import debugger

library = os.path.abspath(sys.argv[1])
work = tempfile.TemporaryDirectory(prefix="neap-resident-")
SQL = ("create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 300000) "
       "insert into t select x, hex(x) from c; create index i on t(b);")
JAVA = "public class Idle { public static void main(String[] a) throws Exception { Thread.sleep(600000); } }"
with open(work.name + "/Idle.java", "w") as f:
    f.write(JAVA)
GIT = ("git init -q . && for i in $(seq 300); do echo $i $(seq $i) > $i; done && git add . && "
       "git -c user.name=n -c user.email=e commit -qm m && (git rev-list --objects HEAD | cut -c-40; sleep 600) | git cat-file --batch")
SOURCE = "int f(int x) { return x + 1; }\n"
PROGRAMS = {
    "python3": ["/usr/bin/python3", "-c", "import json, asyncio, time; x = [{'a': i, 'b': str(i)} for i in range(200000)]; time.sleep(600)"],
    "python3, PYTHONMALLOC=malloc": ["env", "PYTHONMALLOC=malloc", "/usr/bin/python3", "-c", "import time; x = [{'a': i, 'b': str(i)} for i in range(100000)]; time.sleep(600)"],
    "perl": ["perl", "-e", "my %h; $h{$_} = [$_, 'x' x ($_ % 100)] for 1 .. 200000; sleep 600"],
    "node": ["node", "-e", "const b = []; for (let i = 0; i < 300; i++) b.push(Buffer.alloc(1 + i * 700, i)); setTimeout(() => b, 600000)"],
    "redis-server": ["redis-server", "--port", "0", "--unixsocket", work.name + "/redis", "--save", ""],
    "sqlite3": ["sh", "-c", f"(echo '{SQL}'; sleep 600) | sqlite3 :memory:"],
    "gdb": ["sh", "-c", "sleep 600 | gdb -nx /usr/bin/python3"],
    "bash": ["bash", "-c", "for i in $(seq 60000); do a[$i]=value$i; done; sleep 600 & wait"],
    "java": ["java", "-Xmx256m", "-XX:+UseSerialGC", work.name + "/Idle.java"],
    "awk": ["awk", "BEGIN { for (i = 0; i < 300000; i++) a[i] = \"v\" i; system(\"sleep 600\") }"],
    "git": ["sh", "-c", f"mkdir {work.name}/git && cd {work.name}/git && {GIT}"],
    "gcc": ["sh", "-c", f"(echo '{SOURCE}'; sleep 600) | gcc -O2 -x c -S -o /dev/null -"],
    "xz": ["sh", "-c", "(head -c 3000000 /dev/urandom; sleep 600) | xz -9 -c"],
}
# Seconds that a program may work until it is idle, and for which it must use no processor to count as idle.
MOST = 120
REST = 1.5
ARENA = 36
MAP = 2 << 30


def family(pid):
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in open(f"/proc/{pid}/task/{task}/children").read().split():
                yield from family(int(child))
    except OSError:
        pass


def used(pids):
    """Ticks of processor time of these processes."""
    ticks = 0
    for pid in pids:
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return ticks


def rest(processes):
    """Waits until these processes and all that they started use no processor."""
    end = time.monotonic() + MOST
    before = None
    while time.monotonic() < end:
        now = [used(family(process.pid)) for process in processes]
        # A busy process uses more in that time than the occasional tick of an idle one, and descendants that end take
        # theirs away.
        if before and all(abs(a - b) <= 2 for a, b in zip(before, now)):
            return
        before = now
        time.sleep(REST)


def resident(pid):
    """KiB of a process that are resident or swapped out; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/smaps") as f:
            return sum(area[4] for area in areas_of(f))
    except OSError:
        return 0


def areas_of(lines):
    """Start, end, access, name, and KiB that are resident or swapped out, of each mapping."""
    areas = []
    for line in lines:
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
        if head:
            areas.append([int(head[1], 16), int(head[2], 16), head[3], head[4], 0])
        elif line.startswith(("Rss:", "Swap:")):
            areas[-1][4] += int(line.split()[1])
    return areas


def is_neaps(areas):
    """For each mapping whether it is neap's: in an arena, where a reservation of gigabytes without a name begins, or in the
    page map, which is 2 GiB of mappings without a name side by side, read-only at both ends."""
    arenas = {a[0] >> ARENA for a in areas if a[1] - a[0] > 1 << 34 and a[2].startswith("---") and not a[3]}
    ours = [a[0] >> ARENA in arenas and not a[3] for a in areas]
    for first, area in enumerate(areas):
        last = first
        while last < len(areas) and areas[last][0] - area[0] < MAP and not areas[last][3] and area[2].startswith("r--p"):
            if areas[last][1] - area[0] == MAP and areas[last][2].startswith("r--p"):
                ours[first:last + 1] = [True] * (last + 1 - first)
            last += 1
    return ours


def ask(pid):
    """The elements of the report, and the mappings at the same time."""
    report = f"{work.name}/{pid}.xml"
    with debugger.Stopped(pid) as stopped:
        file = stopped.call(debugger.find(pid, "libc", "fopen"), report, "w")
        with open(f"/proc/{pid}/smaps") as f:
            areas = areas_of(f)
        stopped.call(debugger.find(pid, "libneap", "malloc_info"), 0, file)
        stopped.call(debugger.find(pid, "libc", "fclose"), file)
    root = tree.parse(report).getroot()
    return {(e.tag, e.get("type")): int(e.get("size")) for e in root if e.tag != "heap"}, areas


def compare(name, pid):
    numbers, areas = ask(pid)
    said = {kind: size / 1024 for (tag, kind), size in numbers.items() if tag == "resident"}
    parts = sum(size for kind, size in said.items() if kind != "total")
    blocks = (numbers["system", "current"] + numbers["total", "mmap"]) / 1024
    ours = sum(area[4] for area, own in zip(areas, is_neaps(areas)) if own)
    every = sum(area[4] for area in areas)
    named = sum(area[4] for area, own in zip(areas, is_neaps(areas)) if not own and area[3])
    if "total" not in said:
        raise SystemExit(f"{name}: no resident memory in the report")
    good = abs(parts - ours) <= ours * 0.02 and said["total"] == parts
    print(f"{name} | {said['total']:,.0f} | {ours:,} | {parts / ours:.4f} | {said['tables']:,.0f} | {blocks:,.0f} | {every:,} | {named:,}"
          + ("" if good else " TOO FAR"))
    return good


started = {}
for name, command in PROGRAMS.items():
    tool = name.split(",")[0]
    if shutil.which(tool):
        started[name] = subprocess.Popen(command, env={**os.environ, "LD_PRELOAD": library}, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
bad = 0
print("program | malloc_info | neap's mappings | ratio | tables | blocks | process | files and stacks")
try:
    rest(started.values())
    for name, process in started.items():
        bad += not compare(name, max(family(process.pid), key=resident))
finally:
    for process in started.values():
        os.killpg(process.pid, signal.SIGKILL)
print("missing: " + ", ".join(name for name in PROGRAMS if name not in started))
sys.exit(bad > 0)
