"""The window operator over its state against a plain Python model.

The output of any order of batches (also combined), watermarks, freezes, failed uploads, compactions, crashes and
rescales, on each backend; late rows are counted or put aside.
"""

from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.property.harness.backends import (
    MEMORY,
    REMOTE,
    Backend,
    leaving,
    leaving_for_rocksdb,
    on,
)
from tests.property.harness.collect import micros, same_rows
from tests.property.harness.histories import SEEDS, Pace, end, operations, play, step
from tests.property.harness.job import KEY_GROUPS, Input, Job, batch_of, spec_of
from tests.property.window_model import Model
from tests.support.depth import scaled

from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Batch
from penstock.kernels.rows.key_group_split import order_by_owner, take_split
from penstock.operators.aggregates.combine import combiner_for

ALWAYS = JobSettings(combine="all", combine_min_rows=1, combine_ratio=1.0)
AGGREGATES = [
    {"fn": "count", "column": None, "alias": "n"},
    {"fn": "count", "column": "v", "alias": "values"},
    {"fn": "sum", "column": "v", "alias": "total"},
    {"fn": "min", "column": "v", "alias": "least"},
    {"fn": "max", "column": "x", "alias": "most"},
    {"fn": "mean", "column": "v", "alias": "mean"},
    {"fn": "var", "column": "x", "alias": "var"},
    {"fn": "first", "column": "v", "alias": "first"},
    {"fn": "last", "column": "x", "alias": "last"},
]
PICKED = [{"fn": fn, "column": c, "alias": f"{fn}_{c}"} for c in "td" for fn in ("min", "max", "first", "last")]
#: Their order is that of their bytes, whatever their length.
STRINGS = ["", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "\U0001f600", "z" * 40]
KEYS = {
    "int": (("a",), list(range(12))),
    "string": (("s",), [None, "", *[f"key-{i}" * i for i in range(1, 5)], *[f"key-{i}" * i for i in range(6, 10)]]),
    "both": (("a", "s"), [(a, s) for a in (None, 1, 2) for s in (None, "1", "x" * 40)]),
    "twins": (("a", "b"), [(None, 1), (1, None), (None, 2), (2, None), (None, None), (1, 1), (1, 2)]),
}
SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("b", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("v", pa.int32()),
        pa.field("x", pa.float64(), nullable=False),
        pa.field("t", pa.string()),
        pa.field("d", pa.decimal128(38, 2)),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
#: Size, slide, offset, step of cumulative windows, allowed lateness.
_SHAPES = [(100, 100, 0, 0), (100, 100, 33, 0), (90, 30, 7, 0), (100, 40, 0, 0), (30, 70, 0, 0), (120, 120, 7, 30)]
WINDOWS = [(*shape, lateness) for shape in _SHAPES for lateness in (0, 0, 60)]
#: Those whose rows may come combined: no window comes back, and none leaves a gap.
PLAIN = [window for window in WINDOWS if window[1] <= window[0] and not window[4]]


def job_on(backend, way, kind, window):
    """Return a job; `way`: `combined` upstream, late rows `routed`, `values` of any length."""
    key, keys = KEYS[kind]
    size, slide, offset, cumulative, lateness = window
    shape = {"kind": "cumulative", "step_us": cumulative} if cumulative else {"kind": "sliding", "slide_us": slide}
    values = "values" in way
    config = {
        "key": list(key),
        "window": {**shape, "size_us": size, "offset_us": offset},
        "aggregates": AGGREGATES + PICKED if values else AGGREGATES,
        "allowed_lateness_us": lateness,
    }
    if "routed" in way:
        config["late_to"] = {"tag": "late", "columns": SCHEMA.names}

    def opened(operator):
        operator._table.heap._least = operator._table.heap._most = 64  # compacted all the time
        # a footer names the panes of all that shared the file before a change of parallelism
        if backend.state != "remote":
            first = operator._first_open_start(operator._watermarks.low)
            assert all(pane >= first for pane in operator._table.panes()), "closed panes came back"

    spec = spec_of("window_aggregate", config)
    model = Model(key, keys, window, values=values)
    return Job(spec, (Input(SCHEMA, key),), keys, model, backend, opened=opened)


class Steps:
    """Rows that are drawn, some of them combined before they are sent, and watermarks."""

    def __init__(self, job, way):
        self.job, self.pace, self.routed = job, Pace(every=20, rows=200, marks=300), "routed" in way
        self.combiner = combiner_for(job.spec.config, SCHEMA, ALWAYS) if "combined" in way else None

    def batch(self, seed, count):
        rows = drawn(seed, count, list(self.job.hash), self.job.model.key, self.pace.batch())
        late, again = self.job.model.add(rows)
        sent = self.sent(rows, combined=seed % 4 != 3)
        same(self.job.push_with_late(sent, late, routed=self.routed), again)

    def sent(self, rows, *, combined):
        """Yield what the exchange sends to each subtask."""
        data = batch_of([rows[0], *rows], SCHEMA).slice(1)  # validity bits do not begin with a byte
        fewer = self.combiner.combine(data) if self.combiner is not None and combined else None
        data = data if fewer is None else fewer
        parts = take_split(data, *order_by_owner(data, self.job.model.key, KEY_GROUPS, len(self.job.subtasks)))
        for subtask, part in enumerate(parts):
            if part is not None:
                yield subtask, Batch(part, fewer is not None)

    def leap(self, further):
        """Event time goes on, to windows that nobody has seen."""
        self.pace.now += further

    def watermark(self, subtask, further):
        subtask %= len(self.job.subtasks)
        self.mark(subtask, self.pace.mark(further, self.job.marks[subtask]))

    def edge(self, subtask, before):
        """A watermark that just ends, or just does not, the first open window of a subtask."""
        subtask %= len(self.job.subtasks)
        ends = self.job.model.ends(self.job.owned(subtask))
        if ends and ends[0] - before > self.job.marks[subtask]:
            self.mark(subtask, ends[0] - before)

    def mark(self, subtask, timestamp):
        out = self.job.watermark(subtask, timestamp)
        expected = self.job.model.advance(self.job.owned(subtask), timestamp)
        assert [row[TS_COLUMN] for row in out.rows] == [row[TS_COLUMN] for row in expected]
        same(out.rows, expected)


def drawn(seed, count, keys, columns, around):
    """Return rows of some keys around a time."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        name = keys[random.integers(len(keys))]
        row = dict.fromkeys("abs") | dict(zip(columns, name if isinstance(name, tuple) else (name,), strict=True))
        row["v"] = None if random.random() < 0.3 else int(random.integers(-50, 50))
        row["x"] = float(random.integers(-50, 50)) / 4
        row["t"] = None if random.random() < 0.3 else STRINGS[random.integers(len(STRINGS))]
        row["d"] = None if random.random() < 0.3 else Decimal(f"{random.integers(-300, 300)}{'0' * 28}.00")
        row[TS_COLUMN] = int(around + random.integers(-120, 120))
        rows.append(row)
    return rows


def same(found, expected):
    for row in found:
        row["start"], last = micros(row.pop("window_start")), micros(row.pop("window_end"))
        assert last == row[TS_COLUMN] + 1
    same_rows(sorted(found, key=place), sorted(expected, key=place))


def place(row):
    return repr([row["start"], row[TS_COLUMN], *[row.get(c) for c in "abs"]])


OPERATIONS = operations(
    step("batch", SEEDS, st.integers(1, 40), times=4),
    step("leap", st.integers(50, 300)),
    step("watermark", st.integers(0, 3), st.integers(0, 250), times=3),
    step("edge", st.integers(0, 3), st.integers(0, 1), times=2),
    step("copy", st.integers(1, 3)),
    step("checkpoint"),
    step("rescale", st.integers(1, 4)),
    least=15,
    most=50,
)
#: Some state is restored before anything else.
RESTORED = [("batch", 1, 60), ("checkpoint",), ("batch", 2, 60), ("checkpoint",), ("start", 2)]
#: One subtask goes on from two that were at different times, one of them just at the end of a window.
DRIFTED = [*RESTORED, ("batch", 3, 60), *[("edge", 0, 0)] * 3, ("batch", 4, 60), ("rescale", 1)]


def run(backend, case, before, history):
    with job_on(backend, *case) as job:
        steps = Steps(job, case[0])
        play([*before, *history], steps, job)
        end(job, steps)
        assert all(operator._table.panes() == [] for operator in job.operators)


def drawn_on(backend, ways):
    cases = [
        (way, kind, window) for way in ways for kind in KEYS for window in (PLAIN if "combined" in way else WINDOWS)
    ]
    before = st.sampled_from([RESTORED, DRIFTED] if backend.state == "remote" else [[], DRIFTED])
    backend.check(run, case=st.sampled_from(cases), before=before, history=OPERATIONS)


@on((MEMORY, 70), (leaving(3), 40), (leaving_for_rocksdb(3), 15), (REMOTE, 16))
def test_any_history_gives_the_models_windows(backend):
    drawn_on(backend, ["plain", "combined", "routed"])


@on((MEMORY, 30), (leaving(3), 30), (REMOTE, 15))
def test_values_of_any_length_are_the_models(backend):
    drawn_on(backend, ["values", "values, combined"])


def episodes(random, count):
    """A long history: subtasks drift apart in event time, checkpoints and restarts come often."""
    for _ in range(count):
        for _ in range(random.randrange(1, 4)):
            yield "batch", random.randrange(1 << 30), random.randrange(1, 60)
            yield "watermark", random.randrange(4), random.randrange(300)
        if random.random() < 0.6:
            yield ("freeze",)
            for _ in range(random.randrange(3)):
                yield "batch", random.randrange(1 << 30), random.randrange(1, 40)
                yield "watermark", random.randrange(4), random.randrange(300)
                yield "copy", 1
                if random.random() < 0.3:
                    yield ("freeze",)
            yield "finish", random.choice(["done", "done", "failed", "half", "aborted"])
        if random.random() < 0.3:
            yield "finish", "done"
            yield "compact", random.random() < 0.8
            yield "start", random.randrange(1, 5)
            yield ("begin_fetch",)


@pytest.mark.parametrize("seed", range(scaled(1)))
@on(MEMORY, leaving_for_rocksdb(3), Backend("remote", "remote", 3, 500))
def test_a_long_job(backend, seed):
    random = Random(seed)
    way = random.choice(["plain", "combined", "routed", "values, combined"])
    window = random.choice(PLAIN if "combined" in way else WINDOWS)
    run(backend, (way, random.choice(sorted(KEYS)), window), RESTORED, episodes(random, 8))
