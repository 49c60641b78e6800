"""Running aggregates and deduplication in plain Python, with and without a time-to-live, and rows for their jobs.

The clock of a job steps in both directions.
"""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.clock import SteppingClock
from tests.property.harness.collect import same_rows
from tests.property.harness.histories import SEEDS, operations, step
from tests.property.harness.job import Input, Job, spec_of

from penstock.core.elements import TS_COLUMN

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("v", pa.int32()),
        pa.field("x", pa.float64()),
        pa.field("t", pa.string()),
        pa.field("d", pa.decimal128(30, 1)),
        pa.field("b", pa.binary(3)),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
#: Their order is that of their bytes, whatever their length.
STRINGS = ["", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "\U0001f600", "z" * 40]
KEYS = {
    "one": (("a",), list(range(15))),
    "null": (("a",), [None, *range(9)]),
    "two": (("a", "s"), [(a, s) for a in (None, 1, 2) for s in (None, "1", "x" * 40)]),
}

FUNCTIONS = ("count", "sum", "min", "max", "mean", "var", "std", "first", "last")
AGGREGATES = [("n", "count", None), *((f"{fn}_{c}", fn, c) for c in "vx" for fn in FUNCTIONS)]
_PICKS = ("count", "min", "max", "first", "last")
VALUES = [("total", "sum", "v"), *((f"{fn}_{c}", fn, c) for c in "tdb" for fn in _PICKS)]


def aggregate(fn, rows, column):
    """One aggregate of a key's rows so far, as SQL defines it."""
    if column is None:
        return len(rows)
    rows = [r for r in rows if r[column] is not None]
    values = [r[column] for r in rows]
    if fn == "count":
        return len(values)
    if not values:
        return None
    if fn in ("first", "last"):
        times = [r[TS_COLUMN] for r in rows]
        return values[times.index(min(times))] if fn == "first" else values[-1 - times[::-1].index(max(times))]
    if fn in ("var", "std"):
        if len(values) < 2:
            return None
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
        return variance if fn == "var" else math.sqrt(variance)
    return {"sum": sum, "min": min, "max": max, "mean": lambda v: sum(v) / len(v)}[fn](values)


class Plain:
    """What is known of every key that has had a row, and for how long."""

    def __init__(self, key):
        self.key, self.held = key, {}

    #: The clock, in milliseconds, and the time-to-live.
    now, ttl_ms = 0, None

    def expires(self, ttl_ms):
        """Let keys begin anew when they had no row for so long."""
        self.ttl_ms, self.times, self.seen = ttl_ms, {}, {}
        self.config["ttl"] = {"duration_us": ttl_ms * 1000, "on_read": False, "return_expired": False}
        return self

    def name_of(self, row):
        """Return the key of a row."""
        return row[self.key[0]] if len(self.key) == 1 else tuple(row[c] for c in self.key)

    def alive(self, name, now):
        return name in self.held and (self.ttl_ms is None or self.times[name] + self.ttl_ms > now)

    def at(self, name):
        """A row of a key comes now."""
        if name in self.held and not self.alive(name, self.now):
            self.forget(name)

    def forget(self, name):
        del self.held[name], self.times[name]

    def put(self, name, held):
        self.held[name] = held
        if self.ttl_ms is not None:
            self.times[name] = self.now

    def looked_at(self, names):
        """Whoever has these keys may have removed by now what has expired."""
        if self.ttl_ms is not None:
            self.seen |= dict.fromkeys(names, self.now)


class Running(Plain):
    """Every row comes out with its key's aggregates."""

    kind, state = "running_aggregate", "running"

    def __init__(self, key, aggregates=AGGREGATES):
        super().__init__(key)
        self.aggregates = aggregates
        self.config = {
            "key": list(key),
            "aggregates": [{"alias": alias, "fn": fn, "column": column} for alias, fn, column in aggregates],
        }

    def add(self, row):
        name = self.name_of(row)
        self.at(name)
        rows = [*self.held.get(name, ()), row]
        self.put(name, rows)
        key = {c: row[c] for c in self.key}
        return [{**key, **{n: aggregate(fn, rows, c) for n, fn, c in self.aggregates}, TS_COLUMN: row[TS_COLUMN]}]


class Kept(Plain):
    """A row comes out when it takes its key's place."""

    kind, state = "deduplicate", "kept"

    def __init__(self, key, keep, by):
        super().__init__(key)
        self.keep, self.by = keep, by
        self.config = {"key": list(key), "keep": keep, "by": by}

    def add(self, row):
        name, order = self.name_of(row), row[self.by or TS_COLUMN]
        order = -math.inf if order is None else order
        self.at(name)
        old = self.held.get(name)
        if old is not None and (order < old if self.keep == "last" else order >= old):
            return []
        self.put(name, order)
        return [row]


def job_of(model, keys, backend):
    """Return the job of a model."""

    def opened(operator):
        operator._table.heap._least = operator._table.heap._most = 64  # compacted all the time

    spec, inputs = spec_of(model.kind, model.config), (Input(SCHEMA, model.key),)
    return Job(spec, inputs, keys, model, backend, clock=SteppingClock(), opened=opened)


class Steps:
    """Rows that are drawn, steps of the clock, and what is said of every key from outside."""

    def __init__(self, job):
        self.job = job
        #: The latest time at which any subtask has written, and what each of them takes for the time.
        self.latest, self.held = 0, []
        self.go_on()

    def start(self, parallelism):
        self.job.start(parallelism)
        self.go_on()

    def go_on(self):
        """Time goes on from what was restored, and from the clock."""
        ttls = [operator._table.source.ttl for operator in self.job.operators]
        self.held = [self.job.clock.now if ttl is None else ttl.clock.now // 1000 for ttl in ttls]
        if self.job.model.ttl_ms is not None:
            for subtask, now in enumerate(self.held):
                self.went_on(subtask, now)

    def went_on(self, subtask, now):
        """What had expired by a clock that is behind now may have been removed, or not: it shows."""
        model, clock = self.job.model, self.job.clock.now
        assert clock <= now <= max(self.latest, clock, self.job.prepared_at)
        for name in self.job.owned(subtask):
            if model.alive(name, now) and not model.alive(name, model.seen[name]):
                if not self.found(subtask, name):
                    model.forget(name)
            elif name in model.held:
                assert not model.alive(name, now) or model.times[name] <= now
            model.seen[name] = now

    def tick(self, milliseconds):
        self.job.clock.now += milliseconds

    def batch(self, seed, count):
        random = np.random.default_rng(seed)
        self.rows([drawn(random, list(self.job.hash), self.job.model.key) for _ in range(count)])

    def rows(self, rows):
        model = self.job.model
        for subtask, mine in self.job.parts(rows):
            model.now = self.held[subtask] = max(self.held[subtask], self.job.clock.now)
            self.latest = max(self.latest, model.now)
            model.looked_at(self.job.owned(subtask))
            same_rows(self.job.push(subtask, mine).rows, [out for row in mine for out in model.add(row)])

    def found(self, subtask, name):
        return self.job.look(subtask, self.job.model.state, name)

    def question(self):
        for subtask, now in enumerate(self.held):
            for name in self.job.owned(subtask):
                assert len(self.found(subtask, name)) == self.job.model.alive(name, now)


def drawn(random, keys, columns):
    """Return a row of some key."""
    name = keys[random.integers(len(keys))]
    row = dict.fromkeys("as") | dict(zip(columns, name if isinstance(name, tuple) else (name,), strict=True))
    row["v"] = None if random.random() < 0.3 else int(random.integers(-50, 50))
    row["x"] = None if random.random() < 0.3 else float(random.integers(-50, 50)) / 4
    row["t"] = None if random.random() < 0.3 else STRINGS[random.integers(len(STRINGS))]
    row["d"] = None if random.random() < 0.3 else Decimal(int(random.integers(-30, 30))) * 10**20 / 10
    row["b"] = None if random.random() < 0.3 else bytes(random.integers(0, 256, 3).tolist())
    return row | {TS_COLUMN: int(random.integers(-9, 9))}


STEPS = [
    step("batch", SEEDS, st.integers(1, 60), times=3),
    step("batch", SEEDS, st.integers(1, 4), times=2),
    step("tick", st.sampled_from([1, 2_500, 9_999, 10_000, -2_500, -30_000])),
    step("question"),
    step("copy", st.integers(1, 3)),
    step("checkpoint"),
]
OPERATIONS = operations(*STEPS, least=12, most=60)
