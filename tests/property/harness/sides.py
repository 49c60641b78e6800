"""Two keyed inputs: their schemas, the rows that are drawn for them, and the steps that compare a job with its model.

A model has `row(side, row)` and `advance(keys, watermark)`, which return the rows that must come out; `row` returns
`LATE` for a row that is late. Rows are dicts.
"""

import datetime as dt
import zoneinfo
from dataclasses import replace
from random import Random

import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import remote
from tests.property.harness.collect import counted
from tests.property.harness.histories import SEEDS, Pace, operations, step
from tests.property.harness.job import Input

from penstock.core.elements import TS_COLUMN

KEYS = [None, "", *(f"key-{i}" for i in range(5))]
LEFT = pa.schema(
    [
        pa.field("v", pa.int32()),
        pa.field("k", pa.string()),
        pa.field("s", pa.string()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
RIGHT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tags", pa.list_(pa.int64()), nullable=False),
        pa.field("k", pa.bool_()),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
#: The right side where it may hold no lists.
PLAIN_RIGHT = RIGHT.remove(RIGHT.get_field_index("tags"))
TAGS = ("l", "r")
LATE = None
EPOCH = dt.datetime(1970, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))

#: For joins whose rows go to files, and never to RocksDB.
REMOTE_ROWS = tuple(replace(one, plain=False) for one in remote(1, 1, 40_000, 1 << 50))
OPERATIONS = operations(
    step("batch", st.integers(0, 1), SEEDS, st.integers(3, 25), times=3),
    step("watermark", st.integers(0, 3), st.integers(0, 200), times=3),
    step("checkpoint"),
    step("rescale", st.integers(1, 4), times=2),
    least=15,
    most=50,
)
#: Some state is restored before anything else.
RESTORED = [
    *(("batch", side, seed, 30) for side, seed in ((0, 1), (1, 2))),
    *(("checkpoint",), ("batch", 0, 3, 20), ("batch", 1, 4, 20), ("checkpoint",), ("start", 2)),
]


def inputs(right=RIGHT):
    """Return both inputs, by key."""
    return Input(LEFT, ("k",)), Input(right, ("key",))


def join_config(how, *, late=False, right=RIGHT):
    """Return what every join is configured with; late rows are dropped or go aside."""
    columns = {"left": LEFT.names, "right": right.names}
    aside = {side: {"tag": tag, "columns": columns[side]} for side, tag in zip(columns, TAGS, strict=True)}
    common = {"left_key": ["k"], "right_key": ["key"], "suffix": "_right", "how": how}
    return common | ({"late_to": aside} if late else {})


def key_of(side, row):
    """Return the key of a row of a side."""
    return row["key" if side else "k"]


def joined(left, right, schema=RIGHT):
    """Return the result row of a pair, or of one row and None, without its time."""
    row = {name: left and left[name] for name in ("v", "k", "s", "id")}
    row |= {f"{name}_right": right and right[name] for name in ("id", "k")}
    if "tags" in schema.names:
        row["tags"] = right and right["tags"]
    row["k"] = left["k"] if left else right["key"]
    return row


def joined_in(window, how, sides, schema=RIGHT):
    """Return what comes out of a window: all pairs, and where asked for rows whose other side is empty."""
    left, right = sides
    pairs = [(a, b) for a in left for b in right]
    if not right and how in ("left", "full"):
        pairs += [(a, None) for a in left]
    if not left and how in ("right", "full"):
        pairs += [(None, b) for b in right]
    bounds = {
        "window_start": EPOCH + dt.timedelta(microseconds=window.start),
        "window_end": EPOCH + dt.timedelta(microseconds=window.end),
        TS_COLUMN: window.max_timestamp,
    }
    return [joined(a, b, schema) | bounds for a, b in pairs]


class Sides:
    """Rows of both sides that are drawn, and watermarks."""

    def __init__(self, job):
        self.job, self.pace = job, Pace(25, 150, 350)
        #: How many rows came out, and were drawn.
        self.emitted = self.drawn = 0

    def batch(self, side, seed, count, around=None):
        """Draw a batch; without a time it is a little later than the one before."""
        random, around = Random(seed), self.pace.batch() if around is None else around
        step = random.choice([1, 10])
        self.rows(side, [self.draw(random, side, around, step) for _ in range(count)])

    def draw(self, random, side, around, step):
        """Draw a row; with a longer step many have the same time."""
        self.drawn += 1
        time = (around + random.randrange(-40, 40) * random.randrange(1, 6)) // step * step
        if random.random() < 0.1:  # exactly at a watermark
            time = max(random.choice(self.job.marks), around - 200)
        key, number, null = random.choice(KEYS), random.randrange(100), random.random() < 0.3
        row = {"id": self.drawn, TS_COLUMN: time}
        if side:
            return row | {"key": key, "tags": [number] * random.randrange(3), "k": None if null else True}
        return row | {"k": key, "v": None if null else number, "s": "x" * (number % 3)}

    def rows(self, side, rows):
        """Give rows to the job; what comes out, and what is late, is what the model says."""
        found = [self.job.model.row(side, row) for row in rows]
        before = self.dropped()
        outs = [self.job.push(subtask, mine, side) for subtask, mine in self.job.parts(rows, side)]
        self.compare(outs, [one for results in found if results is not LATE for one in results])
        late = [row for row, results in zip(rows, found, strict=True) if results is LATE]
        aside, dropped = [pair for out in outs for pair in out.late], self.dropped() - before
        if "late_to" in self.job.spec.config:
            names = self.job.inputs[side].schema.names
            assert {tag for tag, _ in aside} <= {TAGS[side]}
            assert counted(row for _, row in aside) == counted({name: row[name] for name in names} for row in late)
            assert dropped == 0
        else:
            assert (aside, dropped) == ([], len(late))

    def dropped(self):
        """Return how many rows were late and dropped since the start."""
        return sum(self.job.late_of(subtask) for subtask in range(len(self.job.subtasks)))

    def watermark(self, subtask, further):
        """Give a subtask a watermark not before its last one."""
        subtask %= len(self.job.subtasks)
        mark = self.pace.mark(further, self.job.marks[subtask])
        # rows and windows end at some watermarks exactly, and just behind some
        ends = self.job.model.ends(self.job.owned(subtask)) if further % 2 and hasattr(self.job.model, "ends") else ()
        ends = [end - (further % 8 == 3) for end in ends]
        self.mark(subtask, max((end for end in ends if self.job.marks[subtask] < end <= mark), default=mark))

    def mark(self, subtask, timestamp):
        """Give a subtask a watermark."""
        out = self.job.watermark(subtask, timestamp)
        self.compare([out], self.job.model.advance(self.job.owned(subtask), timestamp))

    def compare(self, outs, expected):
        """What came out is what was expected, and no more keys stay in memory than may."""
        rows = [row for out in outs for row in out.rows]
        self.emitted += len(rows)
        assert counted(rows) == counted(expected)
        most = self.job.backend.keys
        assert most is None or all(s._rows is None or s._rows.index.count <= most for s in self.job.stores)
