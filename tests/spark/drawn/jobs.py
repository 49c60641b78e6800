"""Rows, splits, cuts and a job from one seed."""

import random
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
from tests.spark.drawn.functions import BySlot, BySlotOfBoth, Steps, quieter
from tests.spark.drawn.source import DrawnSource

import penstock as ps
from penstock_connectors.files import FileSink

ROOT = Path(__file__).parents[3]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Event time of the first rows in seconds: before the epoch, at it, at the end of summer time in Berlin.
STARTS = (-7_200, 0, 1_698_537_600, 1_700_000_000)
TYPES = {
    "i": pa.int64(), "n": pa.int32(), "u": pa.uint8(), "f": pa.float64(), "g": pa.float32(), "d": pa.decimal128(18, 2),
    "e": pa.decimal128(38, 4), "s": pa.string(), "b": pa.binary(), "ok": pa.bool_(), "day": pa.date32(),
    "at": pa.timestamp("us", "Europe/Berlin"),
}  # fmt: skip
#: Sums of these floats are exact in any order.
FLOATS = (0.0, -0.0, 0.5, -2.25, 1024.0, float("nan"), float("inf"))
VALUES = {
    "i": (0, 1, -1, 7, 1 << 40, -(1 << 40)),
    "n": (0, 1, -(1 << 31), (1 << 31) - 1),
    "u": (0, 1, 255),
    "f": FLOATS,
    "g": FLOATS,
    "d": tuple(map(Decimal, ("0.00", "-0.01", "1.50", "9999999999999999.99", "-9999999999999999.99"))),
    "e": tuple(map(Decimal, ("0.0000", "0.0001", "-12.5000", f"{'9' * 33}.9999"))),
    "s": ("", "a", "A", "\u00e4", "a longer text than twelve bytes", "\U0001f600"),
    "b": (b"", b"\0", b"\xff\xfe", b"a longer value than twelve bytes"),
    "ok": (True, False),
    "day": (date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)),
    "at": (EPOCH, datetime(2023, 10, 29, 0, 30, tzinfo=UTC), datetime(2023, 10, 29, 1, 30, tzinfo=UTC)),
}
#: 64-bit sums overflow with these.
NEAR_OVERFLOW = ((1 << 63) - 1, -(1 << 63), (1 << 62), 0)
NUMBERS = ("i", "n", "u", "f", "g", "row")
ONE_SOURCE = ("columns", "windows", "sessions", "kept", "stages", "running", "dedup", "reduce", "process", "steps")
TWO_SOURCES = ("union", "interval", "window-join", "temporal", "connect")
FAMILIES = (*ONE_SOURCE, *TWO_SOURCES)
NAMES = ("main", "other")


@dataclass
class Drawn:
    """One job with its input and its cuts."""

    family: str
    seed: int
    rand: random.Random = field(init=False)
    #: What was drawn, as lines for a failure.
    said: list[str] = field(init=False, default_factory=list)
    #: Whether the result depends on the order of arrival, so that a live job may give another.
    ordered: bool = field(init=False, default=False)
    #: uids that have to be accepted.
    accept: tuple[str, ...] = field(init=False, default=())
    #: Whether rows may lie where a session ends.
    touching: bool = field(init=False, default=False)
    #: Whether the last operator has a side output of late rows.
    late: bool = field(init=False, default=False)

    def __post_init__(self):
        self.rand = rand = random.Random(f"{self.family}-{self.seed}")
        self.unit_us = rand.choice([1_000, 1_000_000, 600_000_000])
        self.start_us = rand.choice(STARTS) * 1_000_000
        self.span = rand.choice([6, 40])
        #: Rows in order in one split: a live job has to give the same also if its result depends on the order.
        straight = rand.random() < 0.3
        self.bound = 0 if straight else rand.choice([0, 1, 5])
        self.nulls = rand.choice([0.0, 0.1, 0.6])
        self.overflow = rand.random() < 0.08
        self.columns = rand.sample(list(TYPES), rand.randrange(2, 6))
        self.ts = rand.choice([pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Kolkata"), pa.timestamp("us")])
        kinds = {name: TYPES[name] for name in self.columns}
        self.schema = pa.schema({**kinds, "row": pa.int64()}).append(pa.field("ts", self.ts, nullable=False))
        self.keys = rand.sample(self.columns, rand.choice([1, 1, 2]))
        names = NAMES[: 2 if family_has_two(self.family) else 1]
        count = 1 if straight else rand.choice([0, 1, 2, 3, 4]) if rand.random() < 0.3 else rand.choice([1, 2, 3])
        self.splits = {
            name: tuple(self._rows(1000 * number + 100 * split) for split in range(count))
            for number, name in enumerate(names)
        }
        self.cuts = {name: [self._cut(rows) for rows in splits] for name, splits in self.splits.items()}
        self.parts, self.piece_rows = rand.choice([2, 3, 5]), rand.choice([3, 17, 1000])
        self.batch_rows, self.other_piece_rows = rand.choice([1, 1, 5, 1000]), rand.choice([5, 20, 1000])
        self.idle = rand.random() < 0.2
        self.backend = "rocksdb" if rand.random() < 0.05 else "hashmap"
        self.combine = rand.choice(["exact", "all", "off"])
        self.graph = self._graph()

    def __str__(self):
        rows = {name: [batch.num_rows for batch in splits] for name, splits in self.splits.items()}
        head = f"family {self.family!r}, seed {self.seed}: rows {rows}, cuts {self.cuts}, unit {self.unit_us} us"
        pieces = f"piece_rows {self.piece_rows} and {self.other_piece_rows}"
        more = f"parts {self.parts}, {pieces}, batch_rows {self.batch_rows}, {self.backend}"
        keys = f"key {self.keys} of {self.schema.names}, bound {self.bound}, idle {self.idle}, combine {self.combine}"
        return "\n  ".join([head, more, keys, *self.said, f"python -m tests.spark.drawn {self.family} {self.seed}"])

    @property
    def live(self):
        """Whether a live job gives the same."""
        if self.overflow or self.idle or self.touching or not all(self.splits.values()):
            return False
        return not self.ordered or self._arrives_in_order

    @property
    def _arrives_in_order(self):
        """Whether rows arrive in the order of a backfill; timers between the rows of a batch fire after it."""
        if len(self.splits["main"]) > 1 or self.family in ("steps", "union"):
            return False
        # of versions only the order of those of one time counts
        return self.bound == 0 or self.family == "temporal"

    @property
    def any_parts(self):
        """Whether the number of parts does not matter: the order of rows of one time follows senders."""
        return not (self.ordered and self.family == "union")

    @property
    def until(self):
        """The cuts as a backfill takes them."""
        several = len(self.splits) > 1
        positions = {
            (f"{name}/{number}" if several else str(number)): cut
            for name, cuts in self.cuts.items()
            for number, cut in enumerate(cuts)
        }
        return {"positions": positions} if positions else {}

    # --- input ------------------------------------------------------------------------------------------------

    def _rows(self, first):
        count = 0 if self.rand.random() < 0.08 else self.rand.randrange(1, 60)
        rows = [{name: self._value(name) for name in self.columns} for _ in range(count)]
        for number, row in enumerate(rows):
            place = number * self.span // count - self.rand.randint(0, self.bound)
            row["row"], row["ts"] = first + number, EPOCH + timedelta(microseconds=self.start_us + place * self.unit_us)
            if self.ts.tz is None:
                row["ts"] = row["ts"].replace(tzinfo=None)
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)

    def _value(self, name):
        if self.rand.random() < self.nulls:
            return None
        return self.rand.choice(NEAR_OVERFLOW if self.overflow and name == "i" else VALUES[name])

    def _cut(self, rows):
        return self.rand.choice(
            [0, rows.num_rows, self.rand.randint(0, rows.num_rows), self.rand.randint(0, rows.num_rows)]
        )

    # --- the job ----------------------------------------------------------------------------------------------

    def _graph(self):
        settings = {"state_backend": self.backend, "combine": self.combine, "key_groups": 16}
        env = ps.Environment(parallelism=2, python_path=[str(ROOT)], checkpoint_root="memory://drawn", **settings)
        streams = [self._source(env, name) for name in self.splits]
        out = _BUILD[self.family](self, *streams)
        out.sink_to(FileSink("/nowhere", format="arrow"), uid="out")
        if self.late:
            out.side_output("late").sink_to(FileSink("/nowhere/late", format="arrow"), uid="late-out")
        self.env = env
        return env.job_graph()

    def _source(self, env, name):
        bound = self.bound * self.unit_us / 1e6
        strategy = ps.WatermarkStrategy.bounded_out_of_orderness(bound, timestamp="ts")
        strategy = strategy.with_future_limit(None)
        if self.idle:
            strategy = strategy.with_idleness("1s")
        source = DrawnSource(self.schema, self.splits[name])
        return self._columns(env.from_source(source, watermarks=strategy, uid=name))

    def say(self, line):
        """Note what was drawn."""
        self.said.append(line)

    def duration(self, low, high):
        """Draw a duration in seconds."""
        return self.rand.randint(low, high) * self.unit_us / 1e6

    def keyed(self, stream):
        """Return a stream by the drawn keys."""
        return stream.key_by(*self.keys)

    def _columns(self, stream):
        for _ in range(self.rand.choice([0, 0, 1, 2])):
            name = self.rand.choice(self.columns)
            what = self.rand.choice(["null", "row", "plus", "upper", "python"])
            if what == "null":
                stream = stream.filter(pl.col(name).is_not_null() | (pl.col("row") % 2 == 0))
            elif what == "row":
                stream = stream.filter(pl.col("row") % 5 != 0)
            elif what == "plus" and name in ("i", "n", "f"):
                stream = stream.with_columns(pl.col(name) + 1)
            elif what == "upper" and name == "s":
                stream = stream.with_columns(pl.col("s").str.to_uppercase())
            elif what == "python":
                stream = stream.filter(quieter)
            else:
                continue
            self.say(f"{what} {name}")
        return stream

    def window(self, *, sessions=False, zones=True):
        """Draw a window."""
        if sessions:
            # live, whether a row at the end of a session extends it depends on the rows before it
            self.touching = self.rand.random() < 0.5
            window = ps.Session(self.duration(1, 6) + (0 if self.touching else self.unit_us / 2e6))
        elif zones and self.unit_us == 600_000_000 and self.rand.random() < 0.6:
            size = self.rand.choice(["1h", "1d"])
            zone = self.rand.choice(["Europe/Berlin", "America/St_Johns", "Asia/Kolkata"])
            window = ps.Tumbling(size, time_zone=zone)
        else:
            size = self.duration(1, 8)
            offset = self.rand.choice([0, self.unit_us / 1e6])
            few = self.rand.choice([2, 3])
            window = self.rand.choice(
                [
                    ps.Tumbling(size, offset=offset if offset < size else 0),
                    ps.Sliding(size * few, size, offset=offset if offset < size else 0),
                    ps.Cumulative(size, size * few),
                ]
            )
        self.say(f"window {window}")
        return window

    def aggregates(self, *, kept=False):
        """Draw aggregates; `kept`: at least one keeps rows."""
        kinds = ["count", "sum", "mean", "var", "min", "max", "first", "last", "approx_count_distinct"]
        found = {"rows": ps.count()}
        for number in range(self.rand.randrange(1, 5)):
            keeps = kept and number == 0
            kind = self.rand.choice(["count_distinct", "collect", "quantile"] if keeps else kinds)
            of_numbers = kind in ("sum", "mean", "var", "quantile")
            column = self.rand.choice([c for c in (*self.columns, "row") if not of_numbers or c in NUMBERS])
            # its last digits depend on the order
            column = "row" if kind == "var" else column
            made = ps.quantile(column, 0.5) if kind == "quantile" else getattr(ps, kind)(column)
            if self.rand.random() < 0.3:
                made = made.where(pl.col("row") % 3 != 0)
            self.ordered |= kind in ("first", "last", "collect")
            found[f"x{number}"] = made
            self.say(f"x{number} = {kind}({column})")
        return found


def family_has_two(family):
    """Whether jobs of a family have two sources."""
    return family in TWO_SOURCES


def _columns(drawn, main):
    drawn.say("columns only")
    return main.select(*drawn.columns, "row", pl.col("row").alias("again") * 2)


def _windows(drawn, main, *, sessions=False, kept=False):
    windowed = drawn.keyed(main).window(drawn.window(sessions=sessions))
    late = drawn.rand.choice(["", "", "lateness", "late_to"])
    if late == "lateness":
        windowed = windowed.allowed_lateness(drawn.duration(1, 4))
    elif late:
        windowed, drawn.late = windowed.late_to("late"), True
    drawn.say(f"late rows: {late or 'dropped'}")
    return windowed.aggregate(**drawn.aggregates(kept=kept)).uid("op")


def _sessions(drawn, main):
    return _windows(drawn, main, sessions=True)


def _kept(drawn, main):
    drawn.accept = ("op",)
    return _windows(drawn, main, sessions=drawn.rand.random() < 0.4, kept=True)


def _stages(drawn, main):
    exact = [name for name in drawn.columns if name in ("n", "u")] or ["row"]
    first = drawn.keyed(main).window(drawn.window(sessions=drawn.rand.random() < 0.3))
    counted = first.aggregate(rows=ps.count(), total=ps.sum(exact[0]), most=ps.max("row")).uid("op")
    again = counted.select("rows", "total", "most").key_by("rows").window(drawn.window())
    return again.aggregate(windows=ps.count(), total=ps.sum("total"), least=ps.min("most")).uid("again")


def _running(drawn, main):
    drawn.ordered, drawn.accept = True, ("op",)
    return drawn.keyed(main).aggregate(**drawn.aggregates()).uid("op")


def _dedup(drawn, main):
    drawn.ordered, drawn.accept = True, ("op",)
    keep, by = drawn.rand.choice(["first", "last"]), drawn.rand.choice([None, "row"])
    drawn.say(f"deduplicate {keep} by {by}")
    return drawn.keyed(main).deduplicate(keep=keep, by=by).uid("op")


def _reduce(drawn, main):
    drawn.ordered, drawn.accept = True, ("op",)
    if drawn.rand.random() < 0.5:
        return drawn.keyed(main).window(drawn.window(sessions=drawn.rand.random() < 0.3)).reduce(_later).uid("op")
    return drawn.keyed(main).reduce(_later).uid("op")


def _later(left, right):
    return right if right.row % 7 > left.row % 7 else left


def _process(drawn, main):
    return drawn.keyed(main).process(BySlot(drawn.unit_us * 3)).uid("op")


def _steps(drawn, main):
    drawn.ordered = True
    return drawn.keyed(main).process(Steps(drawn.unit_us)).uid("op")


def _union(drawn, main, other):
    both = main.union(other)
    if drawn.rand.random() < 0.5:
        return _windows(drawn, both)
    return _steps(drawn, both)


def _interval(drawn, main, other):
    how = drawn.rand.choice(["inner", "left", "right", "full"])
    low, high = -drawn.duration(0, 4), drawn.duration(0, 4)
    drawn.say(f"interval join {how} {low} {high}")
    return drawn.keyed(main).interval_join(drawn.keyed(other), low, high, how=how).uid("op")


def _window_join(drawn, main, other):
    how = drawn.rand.choice(["inner", "left", "right", "full"])
    drawn.say(f"window join {how}")
    joined = main.join(other, how=how).where(*drawn.keys).equal_to(*drawn.keys)
    return joined.window(drawn.window(sessions=drawn.rand.random() < 0.3)).uid("op")


def _temporal(drawn, main, other):
    # of two versions of one time the later one to come holds
    drawn.ordered = True
    how = drawn.rand.choice(["inner", "left"])
    drawn.say(f"temporal join {how}")
    return drawn.keyed(main).temporal_join(drawn.keyed(other), how=how).uid("op")


def _connect(drawn, main, other):
    return drawn.keyed(main).connect(drawn.keyed(other)).process(BySlotOfBoth(drawn.unit_us * 3)).uid("op")


_BUILD = {
    "columns": _columns, "windows": _windows, "sessions": _sessions, "kept": _kept, "stages": _stages,
    "running": _running, "dedup": _dedup, "reduce": _reduce, "process": _process, "steps": _steps, "union": _union,
    "interval": _interval, "window-join": _window_join, "temporal": _temporal, "connect": _connect,
}  # fmt: skip
