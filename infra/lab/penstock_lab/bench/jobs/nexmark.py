"""Nexmark's queries over bids, as its V2 suite has them: q0, q1, q2, q5, q7, q11, q12, q17, q18.

Schemas, windows, the watermark's bound of 4 s and 100,000 events per second of event time are V2's; `--events` counts
events of all kinds, of which 46 in 50 are bids. The source makes the bids alone, and of these the columns the query
reads, unless the workload's name ends with `-whole`: then every column, as V2's own source does. Answers are computed
with Polars over the same bids (`nexmark_answers`). Where an output depends on the order in which the source's splits
arrive (q17 and q18 emit for every row) or on the clock (q12), the figures are gated by what does not; the tests compare
the final rows with DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock_lab.bench.jobs import nexmark_answers as answers
from penstock_lab.bench.jobs.sources import due, environment, paced, timed
from penstock_lab.bench.measuring.measure import BenchJob, measure_job
from penstock_lab.nexmark import NexmarkSource, Text
from penstock_lab.workloads import ChecksumSink

if TYPE_CHECKING:
    import polars as pl

    from penstock.api.connectors import Source
    from penstock.api.streams import DataStream
    from penstock_lab.bench.measuring.delays import Results
    from penstock_lab.bench.options import BenchOptions

_EVENTS = 10_000_000
_RATE = 100_000
_BOUND_MS = 4000


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query: its input, its operators, and the checked part of its output."""

    columns: tuple[str, ...]
    #: Takes the stream of bids; if results are rows, also the columns that each row has to carry along.
    run: Callable[..., DataStream]
    #: The checksum is over these: a key, two columns that are summed, one that is mixed with the key.
    shown: tuple[str, str, str, str]
    #: Computes the right answer from the bids, with the columns of `shown`.
    answer: Callable[[pl.LazyFrame], pl.LazyFrame]
    #: Which of the checksum's four numbers are the same in every run; the others depend on arrival or on the clock.
    firm: tuple[int, ...] = (0, 1, 2, 3)
    results: Results = "rows"
    #: Length of the windows, if their ends are not among the columns.
    window_s: int = 0
    #: "views" if no text leaves its task: it stays in the pool, as in Flink's source. An edge copies it.
    text: Text = "copied"


def _q0(bids: DataStream, *along: str) -> DataStream:
    return bids.select("auction", "bidder", "price", "dateTime", "extra", *along)


def _q1(bids: DataStream, *along: str) -> DataStream:
    import polars as pl

    return bids.select("auction", "bidder", pl.col("price") * Decimal("0.908"), "dateTime", "extra", *along)


def _q2(bids: DataStream, *along: str) -> DataStream:
    import polars as pl

    return bids.filter(pl.col("auction") % 123 == 0).select("auction", "price", *along)


def _q5(bids: DataStream) -> DataStream:
    counts = bids.key_by("auction").window(ps.Sliding("10s", "2s")).aggregate(num=ps.count()).uid("q5-counts")
    return counts.window_all(ps.Tumbling("2s")).max_by("num").uid("q5-hot")


def _q7(bids: DataStream) -> DataStream:
    return bids.window_all(ps.Tumbling("10s")).max_by("price").uid("q7-highest")


def _q11(bids: DataStream) -> DataStream:
    return bids.key_by("bidder").window(ps.Session("10s")).aggregate(bid_count=ps.count()).uid("q11-sessions")


def _q12(bids: DataStream) -> DataStream:
    import polars as pl

    window = ps.Tumbling("10s", time="processing")
    counts = bids.key_by("bidder").window(window).aggregate(bid_count=ps.count()).uid("q12-counts")
    return counts.with_columns(weighted=pl.col("bidder") * pl.col("bid_count"))


def _q17(bids: DataStream, *along: str) -> DataStream:
    import polars as pl

    price = pl.col("price")
    by_day = bids.select("auction", "price", *along, day=pl.col("dateTime").dt.date()).key_by("auction", "day")
    running = by_day.aggregate(
        total_bids=ps.count(),
        rank1_bids=ps.count().where(price < 10_000),
        rank2_bids=ps.count().where((price >= 10_000) & (price < 1_000_000)),
        rank3_bids=ps.count().where(price >= 1_000_000),
        min_price=ps.min("price"),
        max_price=ps.max("price"),
        avg_price=ps.mean("price"),
        sum_price=ps.sum("price"),
        **{name: ps.max(name) for name in along},
    ).uid("q17-by-day")
    return running.with_columns(avg_price=pl.col("avg_price").cast(pl.Int64))


def _q18(bids: DataStream, *along: str) -> DataStream:  # noqa: ARG001 - every column is there
    return bids.key_by("bidder", "auction").deduplicate(keep="last", by="dateTime").uid("q18-newest")


_PLAIN = ("auction", "bidder", "price", "dateTime", "extra")
_EVERY = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
QUERIES = {
    "q0": Query(
        columns=_PLAIN, run=_q0, shown=("bidder", "dateTime", "price", "auction"), answer=answers.q0, text="views"
    ),
    "q1": Query(
        columns=_PLAIN, run=_q1, shown=("bidder", "dateTime", "price", "auction"), answer=answers.q1, text="views"
    ),
    "q2": Query(
        columns=("auction", "price", "dateTime"),
        run=_q2,
        shown=("auction", "price", "price", "price"),
        answer=answers.q2,
        text="views",
    ),
    "q5": Query(
        columns=("auction", "dateTime"),
        run=_q5,
        shown=("auction", "window_end", "num", "num"),
        answer=answers.q5,
        results="windows",
    ),
    "q7": Query(
        columns=_PLAIN,
        run=_q7,
        shown=("bidder", "dateTime", "price", "auction"),
        answer=answers.q7,
        results="windows",
        window_s=10,
    ),
    "q11": Query(
        columns=("bidder", "dateTime"),
        run=_q11,
        shown=("bidder", "window_start", "bid_count", "window_end"),
        answer=answers.q11,
        results="windows",
    ),
    "q12": Query(
        columns=("bidder", "dateTime"),
        run=_q12,
        shown=("bidder", "bid_count", "weighted", "bid_count"),
        answer=answers.q12,
        firm=(1, 2),
        results="clock",
    ),
    "q17": Query(
        columns=("auction", "price", "dateTime"),
        run=_q17,
        shown=("auction", "total_bids", "total_bids", "total_bids"),
        answer=answers.q17,
    ),
    "q18": Query(
        columns=_EVERY, run=_q18, shown=("bidder", "dateTime", "price", "auction"), answer=answers.q18, firm=()
    ),
}


def bids_of(env: ps.Environment, source: Source) -> DataStream:
    """Return the stream of bids with V2's watermarks."""
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness(_BOUND_MS / 1000, timestamp="dateTime")
    return env.from_source(source, watermarks=strategy, uid="bids")


def measure(name: str, options: BenchOptions, *, whole: bool = False) -> dict[str, Any]:
    """Run a query once; return its figures.

    Raises:
        PenstockError: the job failed, or its answer is wrong.
    """
    query = QUERIES[name]
    job = BenchJob(
        workload=f"nexmark-{name}{'-whole' if whole else ''}",
        build=f"penstock_lab.bench.jobs.nexmark:build_{name}{'_whole' if whole else ''}",
        right=partial(_right, query, options),
        events=options.events_or(_EVENTS),
        results=query.results,
        bound_ms=_BOUND_MS,
    )
    return measure_job(job, options)


def build(name: str, options: BenchOptions, folder: Path, *, whole: bool = False) -> None:
    """Run the job of a query."""
    query, count = QUERIES[name], options.events_or(_EVENTS)
    env = environment(options, folder)
    bids = _source(options, count, _EVERY if whole else query.columns, query.text, marks=str(folder / "marks"))
    source = paced(bids, options, folder, query.results, "dateTime")
    sink = ChecksumSink(folder=str(folder / "marks"), form="rows", columns=query.shown, **timed(options, query.results))
    along = due(options) if query.results == "rows" else ()
    result = query.run(bids_of(env, source), *along)
    if query.window_s and options.rate is not None:
        result = result.with_columns(window_end=_end_of_window(query.window_s))
    result.sink_to(sink, uid="out")
    env.execute("bench")


def _end_of_window(seconds: int) -> pl.Expr:
    import polars as pl

    return pl.col("dateTime").dt.truncate(f"{seconds}s") + timedelta(seconds=seconds)


def _source(
    options: BenchOptions, count: int, columns: tuple[str, ...], text: Text = "copied", marks: str = ""
) -> NexmarkSource:
    return NexmarkSource(events=count, columns=columns, splits=options.parallelism, rate=_RATE, text=text, marks=marks)


def _right(query: Query, options: BenchOptions, events: int) -> str:
    """Return the right answer for a number of events, with `*` for numbers that differ between runs."""
    found = answers.checksum(query.answer(answers.bids(_source(options, events, query.columns))), query.shown)
    return ":".join(part if place in query.firm else "*" for place, part in enumerate(found.split(":")))


def __getattr__(name: str) -> Any:
    """Return a function of a query by name, such as `q5`, `q5_whole`, `build_q5`, `build_q5_whole`."""
    query = name.removeprefix("build_").removesuffix("_whole")
    if query not in QUERIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(build if name.startswith("build_") else measure, query, whole=name.endswith("_whole"))
