"""The client of tls-chunks: an HTTPS download through requests and pyOpenSSL, read in chunks of one size.

    tls-client.py FOLDER CHUNK SECONDS
    tls-client.py --versions

pyOpenSSL takes each record of at most 16 KiB from OpenSSL through a buffer as large as what is still wanted of the
chunk: `ffi.new("char[]", n)`, fresh and zeroed. (Later versions of pyOpenSSL leave the zeroing out; here it is put back,
as the program of the article had it.) So a chunk of 100 MiB costs 6,400 callocs of up to 100 MiB, of which 16 KiB are
touched.

A first download of some MiB, the same for all sizes, takes imports, handshakes and caches out of the figures. The
measured one lasts SECONDS, and until three chunks are there: Python makes a block for a chunk as it begins, and holds
the chunk before it until then, so the third is the first one in memory that was used before. Who would need longer than
PATIENCE for that is stopped at SECONDS.

Prints lines `metric NAME UNIT VALUE`; with --versions one line of what it is made of.
"""

import platform
import resource
import ssl
import sys
import time

import cffi
import cryptography
import OpenSSL
import OpenSSL.SSL
import requests
import urllib3
import urllib3.contrib.pyopenssl

MIB = 1 << 20
WARM_UP = 16 * MIB
WHOLE_CHUNKS = 3
PATIENCE = 20.0


class Enough(BaseException):
    """What is to be measured was measured."""


class Meter:
    """Counts what the TLS connection hands out, and ends the download."""

    def __init__(self, chunk, seconds):
        self.chunk, self.wanted, self.seconds = chunk, WHOLE_CHUNKS * chunk, seconds
        self.taken = self.reads = 0
        # When the first chunk was there, and the one before the last of those that are wanted.
        self.first = self.before_last = None
        self.begun, self.cpu = time.monotonic(), time.process_time()

    def add(self, count):
        self.taken += count
        self.reads += 1
        elapsed = time.monotonic() - self.begun
        if self.first is None and self.taken >= self.chunk:
            self.first = (self.taken, elapsed)
        if self.before_last is None and self.taken >= self.wanted - self.chunk:
            self.before_last = (self.taken, elapsed)
        if elapsed >= self.seconds and (self.taken >= self.wanted or self.wanted * elapsed > self.taken * PATIENCE):
            raise Enough

    def metrics(self):
        wall, cpu = time.monotonic() - self.begun, time.process_time() - self.cpu
        mib = self.taken / MIB
        yield "throughput", "MiB/s", mib / wall
        if self.first:
            yield "throughput-first", "MiB/s", self.first[0] / MIB / self.first[1]
        if self.before_last and self.taken >= self.wanted:
            taken, elapsed = self.before_last
            yield "throughput-later", "MiB/s", (self.taken - taken) / MIB / (wall - elapsed)
        yield "cpu", "percent", 100 * cpu / wall
        yield "cpu-per-mib", "ms", 1000 * cpu / max(mib, 1e-9)
        yield "reads", "count", self.reads
        yield "bytes", "MiB", mib
        yield "peak", "MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def opened(session, folder, size):
    """The answer of the server with this many bytes, none of which were read."""
    with open(f"{folder}/port", encoding="ascii") as file:
        port = file.read()
    address = f"https://127.0.0.1:{port}/{size}"
    answer = session.get(address, stream=True, verify=f"{folder}/certificate.pem", timeout=60)
    answer.raise_for_status()
    return answer


def download(folder, chunk, seconds):
    # The buffers of the article: zeroed.
    OpenSSL.SSL._no_zero_allocator = OpenSSL.SSL._ffi.new
    urllib3.contrib.pyopenssl.inject_into_urllib3()
    session = requests.Session()
    # No proxy, no certificates of the user's: the server is this machine.
    session.trust_env = False
    for _ in opened(session, folder, WARM_UP).iter_content(MIB):
        pass
    answer = opened(session, folder, 8 << 30)
    original = OpenSSL.SSL.Connection.recv_into
    meter = Meter(chunk, seconds)

    def recv_into(self, buffer, nbytes=None, flags=None):
        count = original(self, buffer, nbytes, flags)
        meter.add(count)
        return count

    OpenSSL.SSL.Connection.recv_into = recv_into
    try:
        for _ in answer.iter_content(chunk):
            pass
    except Enough:
        pass
    for name, unit, value in meter.metrics():
        print(f"metric {name} {unit} {value:.6g}")


def versions():
    names = [("requests", requests), ("urllib3", urllib3), ("pyOpenSSL", OpenSSL), ("cffi", cffi)]
    parts = [f"{name} {module.__version__}" for name, module in names + [("cryptography", cryptography)]]
    own = OpenSSL.SSL.OpenSSL_version(OpenSSL.SSL.OPENSSL_VERSION).decode("ascii")
    print(f"Python {platform.python_version()}, {', '.join(parts)} with {own}; the server has {ssl.OPENSSL_VERSION}")


if sys.argv[1:] == ["--versions"]:
    versions()
else:
    download(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
