# Python with all its blocks from malloc. Prints malloc_info, which it calls through ctypes, and "ready"; then waits for
# its input to end.
import ctypes
import sys

lists = [[str(i * j) for i in range(300)] for j in range(300)]
texts = {i: "x" * (i % 5000) for i in range(20000)}
del lists[::2]
for i in range(0, 20000, 3):
    del texts[i]

libc = ctypes.CDLL(None)
stdout = ctypes.c_void_p.in_dll(libc, "stdout")
# The second call counts what the first one allocated.
for call in range(2):
    libc.malloc_info(0, stdout)
libc.puts(b"ready")
libc.fflush(stdout)
sys.stdin.buffer.raw.read()
