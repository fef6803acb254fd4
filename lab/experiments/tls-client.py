"""The client of tls-chunks: an HTTPS download through requests and pyOpenSSL, read in chunks of one size.

    tls-client.py FOLDER CHUNK MOST-BYTES SECONDS

pyOpenSSL takes each record of at most 16 KiB from OpenSSL through a buffer as large as what is still wanted of the
chunk: `ffi.new("char[]", n)`, fresh and zeroed. (Later versions of pyOpenSSL leave the zeroing out; here it is put back,
as the program of the article had it.) So a chunk of 100 MiB costs 6,400 callocs of up to 100 MiB, of which 16 KiB are
touched. The download ends after MOST-BYTES or SECONDS, whichever comes first.

Prints lines `metric NAME UNIT VALUE`.
"""

import resource
import sys
import time

import OpenSSL.SSL
import requests
import urllib3.contrib.pyopenssl

folder, chunk, most_bytes, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

# The buffers of the article: zeroed.
OpenSSL.SSL._no_zero_allocator = OpenSSL.SSL._ffi.new
urllib3.contrib.pyopenssl.inject_into_urllib3()


class Enough(BaseException):
    """The time or the bytes are used up."""


class Meter:
    """Counts what the TLS connection hands out, and ends the download."""

    def __init__(self):
        self.taken = self.reads = 0
        self.begun = self.cpu = 0.0

    def start(self):
        self.taken = self.reads = 0
        self.begun, self.cpu = time.monotonic(), time.process_time()

    def add(self, count):
        self.taken += count
        self.reads += 1
        if self.taken >= most_bytes or (self.begun and time.monotonic() - self.begun > seconds):
            raise Enough


meter = Meter()
original = OpenSSL.SSL.Connection.recv_into


def recv_into(self, buffer, nbytes=None, flags=None):
    count = original(self, buffer, nbytes, flags)
    meter.add(count)
    return count


def download():
    port = open(f"{folder}/port", encoding="ascii").read()
    answer = requests.get(
        f"https://127.0.0.1:{port}/{8 << 30}", stream=True, verify=f"{folder}/certificate.pem", timeout=60
    )
    answer.raise_for_status()
    OpenSSL.SSL.Connection.recv_into = recv_into
    meter.start()
    try:
        for _ in answer.iter_content(chunk):
            pass
    except Enough:
        pass


def main():
    download()
    wall, cpu = time.monotonic() - meter.begun, time.process_time() - meter.cpu
    usage = resource.getrusage(resource.RUSAGE_SELF)
    for name, unit, value in (
        ("throughput", "MiB/s", meter.taken / wall / (1 << 20)),
        ("cpu", "percent", 100 * cpu / wall),
        ("cpu-per-mib", "ms", 1000 * cpu / max(meter.taken / (1 << 20), 1e-9)),
        ("reads", "count", meter.reads),
        ("bytes", "MiB", meter.taken / (1 << 20)),
        ("peak", "MiB", usage.ru_maxrss / 1024),
    ):
        print(f"metric {name} {unit} {value:.6g}")


main()
