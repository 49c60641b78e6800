"""The merge of windows that keep their rows, over parts of random rows: any history gives the results of all rows.

Parts are frozen, restored, moved, evicted and fetched as the rows of any window.
"""

import functools

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, leaving, on
from tests.property.harness.histories import SEEDS, Pace, end, operations, play, step
from tests.property.harness.job import Input, Job
from tests.property.test_spread_windows import Range

import penstock as ps
from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN
from penstock.core.schema import schema_from_text
from penstock.eventtime.windows import TimeWindow
from penstock.functions.evictors import WindowElement
from penstock.operators.rows.columns import visible
from penstock.operators.rows.row_codec import named_tuple_of
from penstock.operators.rows.user_functions import load_function
from penstock.operators.windows.row_stages import PartialRows
from penstock.operators.windows.window_outputs import FiredRows
from penstock_connectors.datagen import DatagenSource

KEYS = list(range(6))
#: A window is a hundred units long.
UNIT, SIZE = 10_000, 1_000_000
AGGREGATES = {
    "n": ps.count(),
    "total": ps.sum("amount"),
    "least": ps.min("text"),
    "amounts": ps.count_distinct("amount"),
    "texts": ps.count_distinct("text"),
    "median": ps.quantile("amount", 0.5),
    "range": ps.aggregating(Range(), "amount"),
}


@functools.cache
def stages():
    """Return the operators of both stages, and the schemas of their inputs."""
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("4s", timestamp="ts")
    env = ps.Environment(parallelism=2, checkpoint_interval="5s")
    orders = env.from_source(DatagenSource(), watermarks=strategy, uid="orders")
    rows = orders.with_columns(text=(pl.col("amount") % 3).cast(pl.String))
    rows.key_by("user_id", spread=4).window(ps.Tumbling("1s")).aggregate(**AGGREGATES).uid("w").print()
    graph = env.job_graph()
    found = {vertex.operators[0].uid: vertex for vertex in graph.vertices}
    return [
        (found[uid].operators[0], schema_from_text(graph.in_edges(found[uid].id)[0].schema))
        for uid in ("w.partial", "w")
    ]


class Model:
    """The amounts of each window and key, and the watermark of each key."""

    def __init__(self):
        self.amounts, self.out = {}, []
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def add(self, key, ends, amounts):
        self.amounts.setdefault((ends, key), []).extend(amounts)

    def advance(self, keys, timestamp):
        for key in keys:
            self.marks[key] = max(self.marks[key], timestamp)
        for ends, key in sorted(self.amounts):
            if key in keys and ends - 1 <= timestamp:
                rows = self.amounts.pop((ends, key))
                texts = {str(amount % 3) for amount in rows}
                result = (len(rows), sum(rows), min(texts), len(set(rows)), len(texts), float(np.quantile(rows, 0.5)))
                self.out.append((key, ends - 1, *result, max(rows) - min(rows)))


class Steps:
    """Parts of windows that are open, and watermarks."""

    def __init__(self, job, partial, given):
        self.job, self.pace = job, Pace(every=20, rows=60, marks=250)
        rows = visible(given, partial.config["computed"])
        self.row = named_tuple_of("Row", [name for name in rows.names if name != TS_COLUMN])
        *_, own, _ = load_function(partial.payload, "w")
        schemas = rows, pa.schema([given.field(name) for name in partial.config["key"]])
        self.parts = PartialRows(partial.config, (*schemas, schema_from_text(partial.output_schema)), own, "w")

    def batch(self, seed, count):
        random, around = np.random.default_rng(seed), self.pace.batch()
        fired, keys = FiredRows([], [], [], []), []
        for place in range(count):
            key = int(random.integers(len(KEYS)))
            ends = (int(around + random.integers(-90, 90)) // 100 + 1) * SIZE
            if ends - 1 <= self.job.model.marks[key]:
                continue
            amounts = random.integers(0, 9, random.integers(1, 6)).tolist()
            self.job.model.add(key, ends, amounts)
            named = [{"user_id": key, "amount": amount, "text": str(amount % 3)} for amount in amounts]
            elements = [WindowElement(self.row(**row), ends - 1) for row in named]
            fired.places.append(len(keys))
            fired.windows.append(TimeWindow(ends - SIZE, ends))
            fired.times.append(ends - 1)
            fired.elements.append(elements)
            keys.append((key, place % 4))
        if not keys:
            return
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*keys, strict=True), (pa.int64(), pa.uint8()), strict=True)
        ]
        rows = self.parts.rows_of(fired, columns).to_pylist()
        assert not [out for subtask, mine in self.job.parts(rows) if (out := self.job.push(subtask, mine)).rows]

    def watermark(self, subtask, further):
        subtask %= len(self.job.subtasks)
        last = self.job.marks[subtask] // UNIT
        self.mark(subtask, self.pace.mark(further, last) * UNIT)

    def mark(self, subtask, timestamp):
        model = self.job.model
        if timestamp > self.job.operators[subtask]._watermarks.low:
            model.advance(self.job.owned(subtask), timestamp)
        rows = self.job.watermark(subtask, timestamp).rows
        found = [(row["user_id"], row[TS_COLUMN], *(row[name] for name in AGGREGATES)) for row in rows]
        assert sorted(found) == sorted(model.out)
        assert all((row["window_end"] - row["window_start"]).total_seconds() == 1 for row in rows)
        model.out = []


OPERATIONS = operations(
    step("batch", SEEDS, st.integers(1, 20), times=4),
    step("watermark", st.integers(0, 3), st.integers(0, 150), times=3),
    step("checkpoint", times=2),
    step("rescale", st.integers(1, 4)),
    least=8,
    most=24,
)
#: One subtask continues from two that were at different times.
DRIFTED = [("batch", 1, 20), ("checkpoint",), ("start", 2), ("batch", 2, 20), ("watermark", 0, 260), ("rescale", 1)]


def run(backend, before, history):
    (partial, given), (merged, parts) = stages()
    with Job(merged, (Input(parts, ("user_id",)),), KEYS, Model(), backend) as job:
        steps = Steps(job, partial, given)
        play([*before, *history], steps, job)
        end(job, steps)


@on((MEMORY, 60), (leaving(1), 60), (REMOTE[0], 60))
def test_any_history_gives_the_results_of_all_rows(backend):
    backend.check(run, before=st.sampled_from([[], DRIFTED]), history=OPERATIONS)
