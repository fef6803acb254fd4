"""A service under load, then idle: threads that parse JSON, keep recent requests in a cache, and write answers.

    python3 service.py THREADS REQUESTS IDLE_MS [trim]

Each of THREADS threads serves REQUESTS requests. A request is a JSON document of 16 KiB to 2 MiB, most of them small.
It arrives in pieces in a growing buffer, is parsed, goes into the thread's cache of recent requests, and is written as
JSON again. One request in four opens a session of some 1 KiB, which stays. After the load the caches are emptied and
the threads wait for work, IDLE_MS and then twice as long. With `trim` the program calls malloc_trim(0) before it waits.
Prints `metric NAME UNIT VALUE`; `kept` is the part of the load's memory that stays resident, without the sessions.

The sizes come from a fixed sequence for each thread, so that every allocator serves the same requests.
"""

import ctypes
import gc
import json
import random
import sys
import threading
import time
from collections import deque

# Recent requests that a thread remembers.
CACHE = 100
# Of how many requests one opens a session, and how long its text is.
SESSION_EVERY = 4
SESSION = 1000
# What a read from a connection returns at most.
PIECE = 64 << 10
# Sizes of the documents in KiB.
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)


def documents():
    """The JSON texts that clients send."""
    number = random.Random(1)
    texts = []
    for size in SIZES:
        rows = []
        length = 0
        while length < size << 10:
            text = "text " * number.randrange(20, 800)
            rows.append({"id": number.randrange(1 << 31), "text": text, "tags": ["a", "b"]})
            length += len(text) + 50
        texts.append(json.dumps({"rows": rows}).encode())
    return texts


def receive(text):
    """The body, as it comes from a connection: piece by piece into a growing buffer."""
    buffer = bytearray()
    for start in range(0, len(text), PIECE):
        buffer += text[start : start + PIECE]
    return bytes(buffer)


def serve(number, texts, requests, sessions, phase, end):
    """One thread: its load, then an empty cache, then idle until the process ends."""
    choice = random.Random(number)
    weights = [len(texts) - place for place in range(len(texts))]
    cache = deque(maxlen=CACHE)
    for count in range(requests):
        body = receive(choice.choices(texts, weights)[0])
        request = json.loads(body)
        cache.append(request)
        if count % SESSION_EVERY == 0:
            sessions.append(bytes(SESSION + choice.randrange(SESSION // 10)))
        if len(json.dumps(request)) != len(body):
            sys.stderr.write("a request was damaged\n")
            end.damaged = True
    phase.wait()
    phase.wait()
    cache.clear()
    del body, request
    phase.wait()
    end.wait()


def rss():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))


def main():
    threads, requests, idle = (int(word) for word in sys.argv[1:4])
    texts = documents()
    base = rss()
    sessions = []
    phase, end = threading.Barrier(threads + 1), threading.Event()
    end.damaged = False
    begun = time.perf_counter()
    workers = [
        threading.Thread(target=serve, args=(number, texts, requests, sessions, phase, end))
        for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    phase.wait()
    wall = time.perf_counter() - begun
    loaded = rss()
    phase.wait()
    phase.wait()
    gc.collect()
    if sys.argv[4:] == ["trim"]:
        ctypes.CDLL(None).malloc_trim(0)
    at_once = rss()
    time.sleep(idle / 1000)
    after = rss()
    time.sleep(2 * idle / 1000)
    late = rss()
    end.set()
    for worker in workers:
        worker.join()
    if end.damaged:
        sys.exit(4)
    live = base + sum(map(len, sessions)) / (1 << 20)
    for name, unit, value in [
        ("wall", "ms", wall * 1000),
        ("rss-base", "MiB", base),
        ("rss-loaded", "MiB", loaded),
        ("rss-at-once", "MiB", at_once),
        ("rss-idle", "MiB", after),
        ("rss-late", "MiB", late),
        ("kept", "ratio", max(after - live, 0.0) / (loaded - base)),
    ]:
        print("metric", name, unit, value)


main()
