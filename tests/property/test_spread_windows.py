"""Windows of a spread key against the same windows without `spread`, in one job with the same rows and watermarks.

Out-of-order and late rows, crashes, checkpoints and rescales; the schema and the order of columns are equal too.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.support.depth import examples

import penstock as ps
from penstock.core.errors import PenstockError
from penstock.testing import JobHarness, faults
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

#: Rows of a batch, so that the hot key is known after the first one; and the range of its event times, in seconds.
ROWS, AROUND = 90, 9
AGGREGATES = {
    "n": ps.count(),
    "few": ps.count().where(pl.col("amount") > 50),
    "total": ps.sum("amount"),
    "halves": ps.sum("half"),
    "mean": ps.mean("half"),
    "least": ps.min("text"),
    "most": ps.max("amount"),
    "deviation": ps.std("amount"),
}


class Range(ps.Aggregator[int, tuple[int, int], int]):
    """The difference of the greatest and the smallest value."""

    def create_accumulator(self) -> tuple[int, int]:
        return 1 << 62, -(1 << 62)

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return min(accumulator[0], value), max(accumulator[1], value)

    def get_result(self, accumulator: tuple[int, int]) -> int:
        return accumulator[1] - accumulator[0]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return min(left[0], right[0]), max(left[1], right[1])


class Halves(ps.Schema):
    seen: int
    #: None: no row had one.
    most: float | None
    text: str


class HalvesOfRows(ps.Aggregator):
    """Takes whole rows, some of whose values are null."""

    def create_accumulator(self) -> Halves:
        return Halves(seen=0, most=None, text="")

    def add(self, value, accumulator):
        return self.merge(accumulator, Halves(seen=value.half is not None, most=value.half, text=value.text or ""))

    def get_result(self, accumulator: Halves) -> str:
        return f"{accumulator.seen} {accumulator.most} {accumulator.text}"

    def merge(self, left: Halves, right: Halves) -> Halves:
        known = [most for most in (left.most, right.most) if most is not None]
        return Halves(seen=left.seen + right.seen, most=max(known, default=None), text=max(left.text, right.text))


#: Aggregates whose window keeps its rows, with some that have accumulators.
KEPT = {
    "n": ps.count(),
    "halves": ps.sum("half"),
    "least": ps.min("text"),
    "amounts": ps.count_distinct("amount"),
    "distinct": ps.count_distinct("half"),
    "texts": ps.count_distinct("text").where(pl.col("amount") > 50),
    "median": ps.quantile("half", 0.5),
    "range": ps.aggregating(Range(), "amount"),
    "whole": HalvesOfRows(),
}
WINDOWS = {
    "tumbling": ps.Tumbling("10s", offset="3s"),
    "sliding": ps.Sliding("10s", "4s"),
    "cumulative": ps.Cumulative("2s", "10s"),
    "gaps": ps.Sliding("2s", "5s"),
}


class Pair(NamedTuple):
    user: int
    parity: int


def pair(row) -> Pair:
    return Pair(row.user_id, row.amount % 2)


KEYS = {
    "column": lambda stream, spread: stream.key_by("user_id", spread=spread),
    "columns": lambda stream, spread: stream.key_by("text", "user_id", spread=spread),
    "function": lambda stream, spread: stream.key_by(pair, spread=spread),
}


def job_of(keyed, window, aggregates, *, late=False):
    """Return a job with both plans; with `late`, their late rows have sinks of their own."""
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("4s", timestamp="ts")
    env = ps.Environment(parallelism=2, checkpoint_interval="5s", combine_min_rows=32, combine_ratio=1.0)
    orders = env.from_source(DatagenSource(), watermarks=strategy, uid="orders")
    # halves are exact, so that the order of a sum does not matter
    half = pl.when(pl.col("amount") % 5 > 0).then(pl.col("amount") / 2)
    text = pl.when(pl.col("amount") % 7 > 0).then((pl.col("amount") % 7).cast(pl.String))
    rows = orders.with_columns(half=half, text=text)
    for name, spread in (("whole", 1), ("spread", 5)):
        windows = keyed(rows, spread).window(window)
        out = (windows.late_to("late") if late else windows).aggregate(**aggregates).uid(f"{name}-windows")
        out.sink_to(FileSink(f"/tmp/{name}"), uid=name)
        if late:
            out.side_output("late").sink_to(FileSink(f"/tmp/{name}-late"), uid=f"{name}-late")
    return env


def rows_of(seed, number, users=(1, 1, 1, 1, 2, 3, 4)):
    """Return the rows of one batch; most have one key, and some are late."""
    random = np.random.default_rng([seed, number])
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=5 * number)
    return [
        {
            "user_id": int(users[random.integers(len(users))]),
            "amount": int(random.integers(0, 100)),
            "ts": start + timedelta(microseconds=int(random.integers(-AROUND * 1_000_000, AROUND * 1_000_000))),
        }
        for _ in range(ROWS)
    ]


def push(job, seed, *numbers):
    """Push these rows in two batches each, after each of which there may be a watermark."""
    for number in numbers:
        rows, border = rows_of(seed, number), 1 + (seed + 7 * number) % (ROWS - 1)
        job.push("orders", rows[:border])
        job.push("orders", rows[border:])


def same(job, *, late=False):
    """Check that both plans gave the same results and late rows; return the number of late rows."""
    found, expected = (job.frame(name) for name in ("spread", "whole"))
    assert found.columns == expected.columns
    by = [name for name in found.columns if name not in {**AGGREGATES, **KEPT} and name != "window_start"]
    assert_frame_equal(found.sort(by), expected.sort(by), rel_tol=1e-12)
    if not late:
        return 0
    found, expected = (job.frame(name) for name in ("spread-late", "whole-late"))
    assert found.columns == expected.columns
    assert_frame_equal(found.sort(pl.all()), expected.sort(pl.all()))
    return len(found)


def combinations(gate):
    """Return each window with each form of a key; those that are not in `gate` run nightly."""
    return [
        pytest.param(window, key, marks=() if (window, key) in gate else pytest.mark.nightly)
        for window in WINDOWS
        for key in KEYS
    ]


#: Each window and each form of a key once.
PAIRS = [("tumbling", "column"), ("sliding", "columns"), ("cumulative", "function"), ("gaps", "column")]


@pytest.mark.parametrize(("window", "key"), combinations(PAIRS))
@examples(40)
@given(st.integers(0, 1 << 32), faults(max_parallelism=3))
def test_the_result_is_that_of_the_whole_key(window, key, seed, planned):
    late = bool(seed % 2)
    written = job_of(KEYS[key], WINDOWS[window], AGGREGATES, late=late)
    with JobHarness(written, faults=planned, parallelism=2) as job:
        push(job, seed, 0, 1, 2, 3)
        same(job, late=late)
        push(job, seed, 9, 7)  # no row for some windows
        job.end()
        assert same(job, late=late) >= late * ROWS // 2


@pytest.mark.parametrize(("window", "key"), combinations([("sliding", "columns")]))
@examples(40)
@given(st.integers(0, 1 << 32), faults(max_parallelism=3))
def test_kept_rows_give_the_result_of_the_whole_key(window, key, seed, planned):
    late = bool(seed % 2)
    with JobHarness(job_of(KEYS[key], WINDOWS[window], KEPT, late=late), faults=planned, parallelism=2) as job:
        push(job, seed, 0, 1, 9, 7)
        same(job, late=late)
        job.end()
        assert same(job, late=late) >= late * ROWS // 2


def test_late_rows_are_counted_in_the_first_stage():
    with JobHarness(job_of(KEYS["column"], WINDOWS["tumbling"], {"n": ps.count()})) as job:
        for number in (0, 1, 8, 2):
            job.push("orders", rows_of(3, number))
        late = job.late_rows("whole-windows")
        assert late >= ROWS
        assert (job.late_rows("spread-windows.partial"), job.late_rows("spread-windows")) == (late, 0)
        job.end()
        same(job)


def test_distinct_values_are_estimated_as_of_the_whole_key():
    aggregates = {"values": ps.approx_count_distinct("amount"), "n": ps.count()}
    with JobHarness(job_of(KEYS["column"], WINDOWS["tumbling"], aggregates)) as job:
        for number in range(3):
            job.push("orders", rows_of(5, number))
        job.end()
        same(job)


def test_the_rows_of_a_hot_key_are_divided_and_others_are_not():
    with JobHarness(job_of(KEYS["column"], ps.Tumbling("1h"), {"n": ps.count()})) as job:
        for number in range(3):
            job.push("orders", rows_of(7, number, users=(1, 1, 1, 1, 1, 1, *range(100, 140))))
        parts = job.state("spread-windows.partial", "panes").group_by("user_id").agg(pl.len())
        counts = dict(parts.iter_rows())
        assert counts[1] >= 5
        assert sorted(counts[user] for user in range(100, 140) if user in counts)[10] == 1
        shares = dict.fromkeys(("whole-windows", "spread-windows.partial"), 0.0)
        for subtask in job._job.subtasks:
            uid = subtask.links[0].spec.uid
            if uid in shares:
                values = subtask.metrics.publish()
                rows = values["numRecordsIn"] * values.get("hottestKeyShare", 0.0)
                shares[uid] = max(shares[uid], rows / (3 * ROWS))
        assert shares["spread-windows.partial"] < shares["whole-windows"] / 2
        job.end()
        same(job)


def windows_of(spread, window=WINDOWS["tumbling"]):
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("4s", timestamp="ts")
    orders = ps.Environment(parallelism=2).from_source(DatagenSource(), watermarks=strategy, uid="orders")
    return orders.key_by("user_id", spread=spread).window(window).aggregate(n=ps.count()).uid("windows")


def late_rows(job, spread):
    return sum(job.late_rows(uid) for uid in ("windows", "windows.partial")[: min(spread, 2)])


@pytest.mark.parametrize("spread", [1, 9])
def test_open_windows_go_on_with_more_parts(spread, tmp_path):
    with JobHarness(windows_of(spread)) as job:
        job.push("orders", rows_of(2, 0))
        uri, before, late = job.savepoint(tmp_path / "before"), job.frame(), late_rows(job, spread)
    with JobHarness(windows_of(5), from_savepoint=uri) as job:
        job.push("orders", rows_of(2, 1))
        job.end()
        both = pl.concat([before, job.frame()])
        assert both["n"].sum() == 2 * ROWS - late - late_rows(job, 5)
        assert not both.select("user_id", "window_start").is_duplicated().any()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((5,), (1,), "windows.partial"),
        ((1, WINDOWS["sliding"]), (5, WINDOWS["sliding"]), "it is the state of windows of size 10 s, slide 4 s"),
    ],
    ids=["no longer spread", "sliding"],
)
def test_state_that_the_other_plan_cannot_read_is_refused(before, after, words, tmp_path):
    with JobHarness(windows_of(*before)) as job:
        job.push("orders", rows_of(2, 0))
        uri = job.savepoint(tmp_path / "before")
    with pytest.raises(PenstockError, match=words):
        JobHarness(windows_of(*after), from_savepoint=uri)


def kept_windows_of(spread, window=WINDOWS["tumbling"]):
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("4s", timestamp="ts")
    orders = ps.Environment(parallelism=2).from_source(DatagenSource(), watermarks=strategy, uid="orders")
    windows = orders.key_by("user_id", spread=spread).window(window)
    return windows.aggregate(
        n=ps.count(), amounts=ps.count_distinct("amount"), range=ps.aggregating(Range(), "amount")
    ).uid("windows")


def test_kept_rows_go_on_with_another_number_of_parts(tmp_path):
    with JobHarness(kept_windows_of(9)) as job:
        job.push("orders", rows_of(2, 0))
        uri, before, late = job.savepoint(tmp_path / "before"), job.frame(), late_rows(job, 9)
    with JobHarness(kept_windows_of(5), from_savepoint=uri, parallelism=2) as job:
        job.push("orders", rows_of(2, 1))
        job.end()
        both, late = pl.concat([before, job.frame()]), late + late_rows(job, 5)
    with JobHarness(kept_windows_of(1)) as job:
        job.push("orders", rows_of(2, 0))
        job.push("orders", rows_of(2, 1))
        job.end()
        assert_frame_equal(both, job.frame(), check_row_order=False)
        assert late == job.late_rows("windows")


def test_kept_rows_of_the_other_plan_are_refused(tmp_path):
    with JobHarness(kept_windows_of(1)) as job:
        job.push("orders", rows_of(2, 0))
        uri = job.savepoint(tmp_path / "before")
    with pytest.raises(PenstockError, match="windows"):
        JobHarness(kept_windows_of(5), from_savepoint=uri)


@pytest.mark.parametrize(
    ("signs", "spread", "fits"),
    [((1, -1, 1, -1), 1, True), ((1, -1, 1, -1), 2, False), ((1, 1, -1, -1), 1, False), ((1, 1, -1, -1), 2, True)],
)
def test_every_sum_on_the_way_to_a_result_must_fit_64_bits(signs, spread, fits):
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("4s", timestamp="ts")
    orders = ps.Environment(parallelism=1).from_source(DatagenSource(), watermarks=strategy, uid="orders")
    windows = orders.key_by("user_id", spread=spread).window(WINDOWS["tumbling"])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    amounts = [*[1] * 80, *(sign << 62 for sign in signs)]  # the parts of a hot key get its rows in turn
    rows = [{"user_id": 1, "amount": amount, "ts": start} for amount in amounts]
    with JobHarness(windows.aggregate(total=ps.sum("amount")).uid("windows")) as job:
        if fits:
            job.push("orders", rows)
            job.end()
            assert job.frame()["total"].to_list() == [80]
        else:
            with pytest.raises(PenstockError, match="an integer sum does not fit 64 bits"):
                job.push("orders", rows)
