"""Holds memory of a library, prints "ready" and waits; a line of input makes pyarrow's pool give back what is free.

freed   400 MB in pyarrow's buffers of 1 MB, all freed
sparse  16 buffers of pyarrow of 16 MiB, one byte written of each 64 KiB
numpy   an array of 256 MiB, one byte written of each 64 KiB
polars  400 columns of 100,000 numbers, 320 of them dropped
duckdb  a table of 5 million rows
"""
import sys

what = sys.argv[1]
kept = []
if what in ("freed", "sparse"):
    import pyarrow

    for _ in range(400 if what == "freed" else 16):
        buffer = pyarrow.allocate_buffer(1_000_000 if what == "freed" else 16 << 20)
        view = memoryview(buffer).cast("B")
        if what == "freed":
            view[:] = b"\1" * len(view)
        else:
            for at in range(0, len(view), 65536):
                view[at] = 1
        del view
        kept.append(buffer)
    del buffer
    if what == "freed":
        kept.clear()
elif what == "numpy":
    import numpy

    kept = numpy.empty(256 << 20, dtype="u1")
    kept[::65536] = 1
elif what == "polars":
    import polars

    kept = [polars.Series(range(100_000)) for _ in range(400)]
    del kept[:320]
elif what == "duckdb":
    import duckdb

    kept = duckdb.connect()
    kept.execute("create table t as select range as a, range::varchar as b from range(5000000)")
print("ready", flush=True)
for _ in sys.stdin:
    pyarrow.default_memory_pool().release_unused()
    print("ready", flush=True)
