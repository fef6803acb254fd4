"""Compares what neap says that it holds with what the kernel counts, in programs that are idle.

The library is the argument. Each program is started on it, works, and rests; gdb then calls neap_held() in it. What lies
in neap's arenas by /proc/PID/smaps, tables included, is to be the same within 2 % and half a megabyte: that much a small
program leaves untouched in blocks that it has.
"""
import os, re, shutil, signal, subprocess, sys, tempfile, time

library = sys.argv[1]
work = tempfile.TemporaryDirectory(prefix="neap-resident-")
SQL = ("create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 300000) "
       "insert into t select x, hex(x) from c; create index i on t(b);")
JAVA = "public class Idle { public static void main(String[] a) throws Exception { Thread.sleep(120000); } }"
with open(work.name + "/Idle.java", "w") as f:
    f.write(JAVA)
PROGRAMS = {
    "python": ["/usr/bin/python3", "-c", "import json, asyncio, time; x = [{'a': i, 'b': str(i)} for i in range(200000)]; time.sleep(120)"],
    "python, malloc": ["env", "PYTHONMALLOC=malloc", "/usr/bin/python3", "-c", "import time; x = [{'a': i, 'b': str(i)} for i in range(100000)]; time.sleep(120)"],
    "perl": ["perl", "-e", "my %h; $h{$_} = [$_, 'x' x ($_ % 100)] for 1 .. 200000; sleep 120"],
    "node": ["node", "-e", "const b = []; for (let i = 0; i < 300; i++) b.push(Buffer.alloc(1 + i * 700, i)); setTimeout(() => b, 120000)"],
    "redis": ["redis-server", "--port", "0", "--unixsocket", work.name + "/redis", "--save", ""],
    "sqlite3": ["sh", "-c", f"(echo '{SQL}'; sleep 120) | sqlite3 :memory:"],
    "gdb": ["sh", "-c", "sleep 120 | gdb -nx /usr/bin/python3"],
    "bash": ["bash", "-c", "for i in $(seq 60000); do a[$i]=value$i; done; sleep 120 & wait"],
    "java": ["java", "-Xmx256m", "-XX:+UseSerialGC", work.name + "/Idle.java"],
    "awk": ["awk", "BEGIN { for (i = 0; i < 300000; i++) a[i] = \"v\" i; system(\"sleep 120\") }"],
}
REST = 8
ARENA = 36


def family(pid):
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in open(f"/proc/{pid}/task/{task}/children").read().split():
                yield from family(int(child))
    except OSError:
        pass


def resident(pid):
    """KiB in all, and KiB in arenas: where a reservation of gigabytes without a name begins."""
    areas = []
    for line in open(f"/proc/{pid}/smaps"):
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
        if head:
            areas.append([int(head[1], 16), int(head[2], 16), head[3], head[4], 0])
        elif line.startswith("Rss:"):
            areas[-1][4] = int(line.split()[1])
    arenas = {a[0] >> ARENA for a in areas if a[1] - a[0] > 1 << 34 and a[2].startswith("---") and not a[3]}
    return sum(a[4] for a in areas), sum(a[4] for a in areas if a[0] >> ARENA in arenas)


def held(pid):
    call = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "print (unsigned long)neap_held()"]
    answer = subprocess.run(call, capture_output=True, text=True)
    number = re.search(r"\$1 = (\d+)", answer.stdout)
    if not number:
        raise SystemExit(f"gdb says: {answer.stdout}{answer.stderr}")
    return int(number[1]) // 1024


started = {}
for name, command in PROGRAMS.items():
    tool = command[2] if command[0] == "env" else command[2].split("|")[1].split()[0] if command[0] == "sh" else command[0]
    if shutil.which(tool):
        started[name] = subprocess.Popen(command, env={**os.environ, "LD_PRELOAD": library}, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
bad = 0
try:
    time.sleep(REST)
    for name, process in started.items():
        all_kib, arena, pid = max((*resident(pid), pid) for pid in family(process.pid))
        books = held(pid)
        good = abs(books - arena) <= arena * 0.02 + 512
        bad += not good
        print(f"{name}: {books} KiB by the books, {arena} KiB in arenas, {all_kib} KiB in all: {books / arena:.3f}"
              + ("" if good else " TOO FAR"))
finally:
    for process in started.values():
        os.killpg(process.pid, signal.SIGKILL)
print(f"{len(started)} programs")
sys.exit(bad > 0)
