"""Functions of two connected streams over their shared state against a plain Python model.

Any order of rows of both sides, watermarks, freezes, failed uploads, compactions, restores and rescales gives the
model's rows.
"""

import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from tests.property.two_inputs import KEY_NAMES, KEYS, LEFT, OPERATIONS, RIGHT, UID, Job, run
from tests.support import sizes as state_sizes
from tests.support.depth import examples

import penstock as ps
from penstock.api.connected_streams import _CO, compile_two_input
from penstock.api.data_stream import Flow
from penstock.api.keyed_stream import KeyedStream
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN
from penstock.core.schema import schema_to_text


class Out(NamedTuple):
    k: str | None
    what: str
    seen: int
    newest: str | None


class Both(ps.KeyedCoProcessFunction):
    """Counts the left rows, keeps the newest text of the right ones, and tells both when a timer comes."""

    seen: ps.ValueState[int] = ps.value_state()
    newest: ps.ValueState[str] = ps.value_state()

    def process1(self, row, ctx) -> Iterator[Out]:
        self.seen.update((self.seen.value() or 0) + 1)
        if row.id % 5 == 0:
            ctx.timers.event(ctx.timestamp + 40)
        if row.v is not None:
            yield Out(ctx.key, f"left {row.s}", self.seen.value() or 0, self.newest.value())

    def process2(self, row, ctx) -> None:
        self.newest.update(f"{row.id} {len(row.tags)}")
        if row.k:
            ctx.timers.event(ctx.timestamp + 25)
        elif row.id % 4 == 0:
            self.seen.clear()

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, f"timer {timestamp}", self.seen.value() or 0, self.newest.value())


class Model:
    """The same over dicts."""

    late = 0

    def __init__(self):
        self.seen, self.newest = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS)
        self.timers = {key: frozenset() for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model()
        other.seen, other.newest = dict(self.seen), dict(self.newest)
        other.timers, other.marks = dict(self.timers), dict(self.marks)
        return other

    def row(self, side, row):
        key, time = row[KEY_NAMES[side]], row[TS_COLUMN]
        if side:
            self.newest[key] = f"{row['id']} {len(row['tags'])}"
            if row["k"]:
                self.timers[key] |= {time + 25}
            elif row["id"] % 4 == 0:
                self.seen[key] = 0
            return []
        self.seen[key] += 1
        if row["id"] % 5 == 0:
            self.timers[key] |= {time + 40}
        return [] if row["v"] is None else [self.result(key, f"left {row['s']}", time)]

    def advance(self, keys, watermark):
        due = [(key, time) for key in keys for time in self.timers[key] if time <= watermark]
        for key in keys:
            self.timers[key] = frozenset(time for time in self.timers[key] if time > watermark)
        return [self.result(key, f"timer {time}", time) for key, time in due]

    def result(self, key, what, time):
        return {"k": key, "what": what, "seen": self.seen[key], "newest": self.newest[key], TS_COLUMN: time}


def spec():
    def stream(schema, key):
        return KeyedStream(None, Flow(upstreams=(), schema=schema), (key,))

    made = compile_two_input(_CO, Both(), None, {}, (stream(LEFT, "k"), stream(RIGHT, "key")))
    text = schema_to_text(made.schema)
    return SimpleNamespace(
        uid=UID, kind="co_process", payload=made.spec.payload, config=made.spec.config, output_schema=text
    )


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    state_sizes.given(monkeypatch, fired_timers=5, first_rows=8, dead_keys=1, segments_per_tier=3)


@examples(40)
@given(operations=OPERATIONS)
def test_any_history_gives_the_models_rows(operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(), Model())
        run(job, operations)
        job.checkpoint()
        job.restart(3)
        for subtask in range(3):
            job.watermark(subtask, MAX_TIMESTAMP)
        job.close()
