"""A source that runs something in the worker and fails with what it found: the shortest way to look into a worker.

Put on a worker's import path by the tests; knows nothing of them.
"""

import ctypes
import os
import sys
from pathlib import Path

from penstock.core.errors import ConnectorError

#: The test's own reference, so that a worker can hang where no Python code runs.
HANG_SECONDS = 60


def calls():
    """Run an Arrow, a Polars and a Kafka call with native threads behind them."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"k": [i % 7 for i in range(100_000)], "v": range(100_000)})
    arrow = pc.sum(table.column("v")).as_py()
    grouped = pl.from_arrow(table).lazy().group_by("k").agg(pl.col("v").sum()).collect()
    parallel = table.group_by("k").aggregate([("v", "sum")]).num_rows
    from confluent_kafka.admin import AdminClient

    AdminClient({"bootstrap.servers": "127.0.0.1:1"}).poll(0)
    return f"arrow={arrow} polars={grouped['v'].sum()} groups={parallel}"


def hold_gil():
    """Sit in a C call that holds the GIL: no Python thread of this process runs any more."""
    ctypes.PyDLL(None).sleep(HANG_SECONDS)
    return "woke up"


def eat():
    """Hold more and more memory."""
    eaten = [b"x" * (1 << 20) for _ in range(2000)]
    return f"ate {len(eaten)}"


def look():
    """Tell of the process."""
    descriptors = sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists())
    return f"switch={sys.getswitchinterval()} sockets={sum(d.startswith('socket:') for d in descriptors)}"


def library():
    """Import what only the job's requirements or folders offer."""
    import probe_library

    return f"library={probe_library.NAME}"


def die():
    """End without a word."""
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os._exit(7)


class ProbeFactory:
    """`config["run"]` names one of the functions above."""

    def create_reader(self, spec, context):
        return ProbeReader(spec.config["run"])


class ProbeReader:
    def __init__(self, run):
        self._run = run

    def poll(self, max_rows):
        raise ConnectorError(f"probe: {globals()[self._run]()}")

    def close(self):
        pass
