"""w5 in Bytewax: `python -m bytewax.run -w 1 'w5_bytewax:flow(EVENTS, FOLDER)'`; its record is left in the folder.

Bytewax has event time only inside its windows, so the function by row is a window's own logic: `on_value` for every
row, `on_close` as the timer. Started by `penstock bench w5 --peers` with the interpreter of Bytewax's venv.
"""

import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as win
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

T0_MS, SIZE_MS, USERS, PRIME, M32 = 1_700_000_000_000, 10_000, 100_000, 1_000_000_007, (1 << 32) - 1
BATCH = 1000
BEGUN = []


class Part(StatefulSourcePartition):
    """Every second thousand of the events."""

    def __init__(self, half, count):
        self.at, self.count = half * BATCH, count

    def next_batch(self):
        if self.at >= self.count:
            raise StopIteration
        BEGUN[:] = BEGUN or [time.time()]
        low, self.at = self.at, self.at + 2 * BATCH
        i = np.arange(low, min(low + BATCH, self.count), dtype=np.int64)
        a = i * 2654435761 & M32
        b = (a + (a >> 15) & M32) * 1540483477 & M32
        c = (a + (a >> 13) & M32) * 1103515245 & M32
        times = T0_MS + i // 100 - (c >> 4) % 5000
        columns = (b >> 4) % USERS, 1 + (c >> 20) % 1000, times
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def snapshot(self):
        return self.at


class Events(FixedPartitionedSource):
    def __init__(self, count):
        self.count = count

    def list_parts(self):
        return ["0", "1"]

    def build_part(self, _step, part, _state):
        return Part(int(part), self.count)


class Counting(win.WindowLogic):
    """Count and sum of a user's window."""

    def __init__(self, state):
        self.n, self.total = state or (0, 0)

    def on_value(self, value):
        self.n += 1
        self.total += value[1]
        return ()

    def on_merge(self, original):
        self.n += original.n
        self.total += original.total
        return ()

    def on_close(self):
        return ((self.n, self.total),)

    def snapshot(self):
        return self.n, self.total


class Sums(StatelessSinkPartition):
    def __init__(self, folder, cut):
        self.folder, self.cut, self.sums = folder, cut, [0, 0, 0, 0]

    def write_batch(self, items):
        for key, (window, (n, total)) in items:
            if T0_MS + (window + 1) * SIZE_MS <= self.cut:
                check = ((int(key) * 31 + (window + 1) * 17 + n) * (total + 7)) % PRIME
                self.sums = [a + b for a, b in zip(self.sums, (1, n, total, check), strict=True)]

    def close(self):
        record = {"checksum": ":".join(map(str, self.sums)), "t_start": BEGUN[0], "t_end": time.time()}
        Path(self.folder, f"{uuid.uuid4().hex}.json").write_text(json.dumps(record), encoding="utf-8")


class Out(DynamicSink):
    def __init__(self, folder, cut):
        self.folder, self.cut = folder, cut

    def build(self, _step, _worker, _workers):
        return Sums(self.folder, self.cut)


def flow(count, folder):
    """Return the dataflow."""
    begin = datetime.fromtimestamp(T0_MS / 1000, UTC)
    clock = win.EventClock(
        ts_getter=lambda event: datetime.fromtimestamp(event[2] / 1000, UTC),
        wait_for_system_duration=timedelta(seconds=5),
        now_getter=lambda: begin,  # the watermark goes by the events alone
        to_system_utc=lambda _: None,
    )
    windower = win.TumblingWindower(length=timedelta(milliseconds=SIZE_MS), align_to=begin)
    cut = (T0_MS + (count - 1) // 100 - 5000 - 50) // SIZE_MS * SIZE_MS
    dataflow = Dataflow("w5")
    keyed = op.key_on("key", op.input("in", dataflow, Events(count)), lambda event: str(event[0]))
    windows = win.window("windows", keyed, clock, windower, Counting, ordered=False)
    op.output("out", windows.down, Out(folder, cut))
    return dataflow
