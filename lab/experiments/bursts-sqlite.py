"""Bulk inserts of small rows into a database in memory, with pauses.

    python3 bursts-sqlite.py ROWS ROUNDS PAUSE_MS

Each round makes a database in memory, inserts ROWS rows of 20 to 120 bytes, adds an index, sums up and drops all of it;
then the program pauses. Prints what the program `bursts` prints. The first round is not measured. The rows are made by
SQLite itself, so that the work is SQLite's and not Python's.
"""

import resource
import statistics
import sys
import time

try:
    import sqlite3
except ImportError:
    sys.stderr.write("Python has no sqlite3 (Debian: apt install python3 libsqlite3-0)\n")
    sys.exit(5)

MAKE = """
with recursive number(n) as (select 1 union all select n + 1 from number where n < ?)
insert into entry select n, (n * 7919) % 1000003, substr(hex(zeroblob(60)), 1, 20 + n % 101) from number
"""


def length_of(rows):
    return sum(20 + n % 101 for n in range(1, rows + 1))


def round_of_work(rows, length):
    database = sqlite3.connect(":memory:")
    database.execute("create table entry (id integer primary key, key integer, text text)")
    database.execute(MAKE, (rows,))
    database.execute("create index by_key on entry (key, text)")
    count, total = database.execute("select count(*), sum(length(text)) from entry").fetchone()
    database.close()
    if count != rows or total != length:
        sys.stderr.write("the database was damaged\n")
        sys.exit(4)


def rss():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))


def faults():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def main():
    rows, rounds, pause = (int(word) for word in sys.argv[1:4])
    # Python's and SQLite's own tables are there before the first figure.
    round_of_work(10, length_of(10))
    length = length_of(rows)
    base = rss()
    figures = {"wall": [], "cpu": [], "faults": [], "pause-cpu": [], "rss-pause": []}
    for number in range(rounds + 1):
        begun, processor, before = time.monotonic(), time.process_time(), faults()
        round_of_work(rows, length)
        end, spent, after = time.monotonic(), time.process_time(), faults()
        if number > 0:
            figures["wall"].append((end - begun) * 1e3)
            figures["cpu"].append((spent - processor) * 1e3)
            figures["faults"].append(after - before)
        if number == rounds:
            break
        time.sleep(pause / 1e3)
        figures["pause-cpu"].append((time.process_time() - spent) * 1e3)
        figures["rss-pause"].append(rss() - base)
    time.sleep(1)
    print("metric rss-idle MiB", rss() - base)
    units = {"wall": "ms", "cpu": "ms", "faults": "count", "pause-cpu": "ms", "rss-pause": "MiB"}
    for name, values in figures.items():
        print("metric", name, units[name], statistics.median(values))


main()
