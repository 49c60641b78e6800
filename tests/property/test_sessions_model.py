"""Session windows over their state against a plain Python model.

Any order of batches, watermarks, freezes, failed uploads, compactions, crashes and rescales gives the model's output,
wherever the state is; late rows are counted or put aside, or within the allowed lateness make their session come out
again.
"""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, leaving, leaving_for_rocksdb, on
from tests.property.harness.collect import micros
from tests.property.harness.histories import SEEDS, Pace, end, operations, play, step
from tests.property.harness.job import Input, Job, spec_of

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN

KEYS = [None, "", *(f"key-{i}" for i in range(6))]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("v", pa.int32()),
        pa.field("x", pa.float64(), nullable=False),
        pa.field("t", pa.large_string()),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
AGGREGATES = [
    {"fn": "count", "column": None, "alias": "n"},
    {"fn": "sum", "column": "v", "alias": "total"},
    {"fn": "max", "column": "x", "alias": "most"},
    {"fn": "first", "column": "x", "alias": "first"},
    {"fn": "last", "column": "x", "alias": "last"},
    {"fn": "min", "column": "t", "alias": "least_text"},
    {"fn": "max", "column": "t", "alias": "most_text"},
]


class Model:
    """Sessions as lists of rows in order of arrival; each key has the watermark its subtask had."""

    def __init__(self, gap, lateness):
        self.gap, self.lateness = gap, lateness
        self.sessions = {key: [] for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def add(self, rows):
        """Put rows into sessions; return the late ones, and the sessions with one of the others that had ended."""
        late = [row for row in rows if not self.takes(row)]
        ended = [
            (key, s)
            for key, mine in self.sessions.items()
            for s in mine
            if last(s) + self.gap - 1 <= self.marks[key] and any(r is row for r in s for row in rows)
        ]
        return late, [self.result(key, s) for key, s in ended]

    def takes(self, row):
        key, time = row["k"], row[TS_COLUMN]
        mine = self.sessions[key]
        touched = [s for s in mine if first(s) - self.gap <= time <= last(s) + self.gap]
        merged = [r for s in touched for r in s] + [row]
        if last(merged) + self.gap - 1 + self.lateness <= self.marks[key]:
            return False
        self.sessions[key] = [s for s in mine if s not in touched] + [merged]
        return True

    def advance(self, keys, watermark):
        fired = []
        for key in keys:
            ends = [(last(s) + self.gap - 1, s) for s in self.sessions[key]]
            ended = [s for end, s in ends if self.marks[key] < end <= watermark]
            self.sessions[key] = [s for end, s in ends if end + self.lateness > watermark]
            self.marks[key] = max(self.marks[key], watermark)
            fired += [self.result(key, s) for s in ended]
        return fired

    def ends(self, keys):
        """Return when the open sessions of these keys end."""
        mine = [(self.marks[key], last(s) + self.gap - 1) for key in keys for s in self.sessions[key]]
        return sorted(end for mark, end in mine if end > mark)

    def result(self, key, rows):
        values = [r["v"] for r in rows if r["v"] is not None]
        texts = [r["t"] for r in rows if r["t"] is not None]
        return {
            "k": key,
            "window_start": first(rows),
            "window_end": last(rows) + self.gap,
            "n": len(rows),
            "total": sum(values) if values else None,
            "most": max(r["x"] for r in rows),
            "least_text": min(texts, default=None),
            "most_text": max(texts, default=None),
            "first": {r["x"] for r in rows if r[TS_COLUMN] == first(rows)},
            "last": {r["x"] for r in rows if r[TS_COLUMN] == last(rows)},
            TS_COLUMN: last(rows) + self.gap - 1,
        }


def first(rows):
    return min(r[TS_COLUMN] for r in rows)


def last(rows):
    return max(r[TS_COLUMN] for r in rows)


def job_on(backend, gap, lateness, *, routed):
    config = {
        "key": ["k"],
        "window": {"kind": "session", "gap_us": gap},
        "aggregates": AGGREGATES,
        "allowed_lateness_us": lateness,
    }
    if routed:
        config["late_to"] = {"tag": "late", "columns": SCHEMA.names}
    spec = spec_of("session_aggregate", config)
    return Job(spec, (Input(SCHEMA, ("k",)),), KEYS, Model(gap, lateness), backend, opened=opened)


def opened(operator):
    operator._table.heap._least = operator._table.heap._most = 64  # compacted all the time


class Steps:
    """Rows that are drawn, and watermarks."""

    def __init__(self, job):
        self.job, self.pace, self.routed = job, Pace(every=25, rows=150, marks=350), "late_to" in job.spec.config

    def batch(self, seed, count):
        random, around = np.random.default_rng(seed), self.pace.batch()
        rows = []
        for _ in range(count):
            value = None if random.random() < 0.3 else int(random.integers(-50, 50))
            time = int(around + random.integers(-40, 40) * random.integers(1, 6))
            key = KEYS[int(random.integers(len(KEYS)))]
            text = None if random.random() < 0.2 else "text-" * int(random.integers(0, 3)) + str(random.integers(100))
            rows.append({"k": key, "v": value, "x": float(random.integers(-50, 50)), "t": text, TS_COLUMN: time})
        self.rows(rows)

    def rows(self, rows):
        late, again = self.job.model.add(rows)
        sent = ((subtask, self.job.batch(mine)) for subtask, mine in self.job.parts(rows))
        same(self.job.push_with_late(sent, late, routed=self.routed), again)

    def watermark(self, subtask, further):
        subtask %= len(self.job.subtasks)
        self.mark(subtask, self.pace.mark(further, self.job.marks[subtask]))

    def edge(self, subtask, before):
        """Watermarks that just end, or just do not, the first open session of a subtask, and then just the next."""
        subtask %= len(self.job.subtasks)
        for short in (before, 0):
            ends = self.job.model.ends(self.job.owned(subtask))
            if ends and ends[0] - short > self.job.marks[subtask]:
                self.mark(subtask, ends[0] - short)

    def mark(self, subtask, timestamp):
        out = self.job.watermark(subtask, timestamp)
        same(out.rows, self.job.model.advance(self.job.owned(subtask), timestamp))

    def checkpoint(self):
        self.job.checkpoint()
        assert all(row["__rows"] > 0 for row in self.job.rows_of("sessions")), "what was emptied is shown as a row"


def same(found, expected):
    assert len(found) == len(expected)
    shown = [{**row, **{c: micros(row[c]) for c in ("window_start", "window_end")}} for row in found]
    for got, wanted in zip(sorted(shown, key=place), sorted(expected, key=place), strict=True):
        assert got.pop("first") in wanted.pop("first")
        assert got.pop("last") in wanted.pop("last")
        assert got == wanted


def place(row):
    return repr([row["k"], row["window_start"]])


OPERATIONS = operations(
    step("batch", SEEDS, st.integers(1, 40), times=4),
    step("watermark", st.integers(0, 3), st.integers(0, 300), times=3),
    step("edge", st.integers(0, 3), st.integers(0, 1)),
    step("copy", st.integers(1, 3)),
    step("checkpoint"),
    step("start", st.integers(1, 4)),
    least=20,
    most=60,
)
#: Some state is restored before anything else; then by one subtask from two that were at different times.
RESTORED = [("batch", 1, 40), ("watermark", 0, 150), ("checkpoint",), ("batch", 2, 40), ("checkpoint",), ("start", 2)]
DRIFTED = [*RESTORED, ("batch", 3, 40), ("watermark", 0, 200), ("watermark", 1, 350), ("checkpoint",), ("start", 1)]
#: A gap and an allowed lateness.
WINDOWS = [(7, 0), (30, 0), (100, 0), (7, 20), (30, 200), (100, 30)]


def run(backend, window, routed, before, history):
    with job_on(backend, *window, routed=routed) as job:
        steps = Steps(job)
        play([*before, *history], steps, job)
        steps.checkpoint()
        # the emptied pane of the last session goes with the next one
        steps.rows([{"k": key, "v": 1, "x": 1.0, "t": "", TS_COLUMN: steps.pace.now + 1000} for key in KEYS])
        end(job, steps)
        assert all(operator._table.panes() == [] for operator in job.operators), "a pane outlives its sessions"


@on((MEMORY, 50), (leaving(1), 30), (leaving_for_rocksdb(1), 4), (REMOTE, 15))
def test_any_history_gives_the_models_sessions(backend):
    before = st.sampled_from([RESTORED, DRIFTED] if backend.state == "remote" else [[], DRIFTED])
    backend.check(run, window=st.sampled_from(WINDOWS), routed=st.booleans(), before=before, history=OPERATIONS)


@on(leaving(1))
def test_a_session_that_fired_before_its_key_left_does_not_come_out_again(backend):
    """One fires, leaves for the other, and is back for its row at 5, which has to be in a newer pane from 49 on."""
    with job_on(backend, 30, 20, routed=False) as job:
        steps = Steps(job)
        for key, times in (("key-1", [45]), ("key-0", [5, 32])):
            steps.rows([{"k": key, "v": 1, "x": 1.0, "t": "", TS_COLUMN: time} for time in times])
        for closed_to in (28, 50, 200):
            steps.mark(0, closed_to + 29)
