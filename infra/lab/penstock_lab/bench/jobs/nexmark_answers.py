"""The right answers of the Nexmark queries, computed with Polars over the bids, without code of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from penstock_lab.bench.measuring.reference import MODULUS, T0_MS
from penstock_lab.nexmark import events

if TYPE_CHECKING:
    from penstock_lab.nexmark import NexmarkSource

_STEP_US, _SLIDES, _WINDOW_US = 2_000_000, 5, 10_000_000
_TIME = pl.Datetime("us", "UTC")


def bids(source: NexmarkSource) -> pl.LazyFrame:
    """Return all bids of a bounded source, without the strings, on which no answer depends."""
    assert source.events is not None  # noqa: S101 - a benchmark's source is bounded
    pattern = source.pattern()
    numbers = type(pattern)(
        **{field: getattr(pattern, field) for field in pattern.__struct_fields__ if field != "columns"},
        columns=tuple(name for name in pattern.schema.names if name not in ("channel", "url", "extra")),
    )
    made = pa.Table.from_batches(events(numbers, source.events), schema=numbers.schema)
    return pl.DataFrame(pl.from_arrow(made)).lazy()


def checksum(rows: pl.LazyFrame, shown: tuple[str, str, str, str]) -> str:
    """Return rows, two sums, and the sum of (key * 31 + last column) mod the prime; times count in ms since T0."""
    schema = rows.collect_schema()
    key, first, second, third = (
        (pl.col(name).to_physical() // 1000 - T0_MS)
        if schema[name] == _TIME and place == 1
        else pl.col(name).to_physical()
        for place, name in enumerate(shown)
    )
    found = rows.select(
        pl.len().alias("rows"),
        first.sum().alias("first"),
        second.sum().alias("second"),
        ((key * 31 + third) % MODULUS).sum().alias("check"),
    ).collect()
    return ":".join(str(value) for value in found.row(0))


def q0(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return all bids."""
    return rows


def q1(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return prices in thousandths of another currency."""
    return rows.with_columns(price=pl.col("price") * 908)


def q2(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return bids for every 123rd auction."""
    return rows.filter(pl.col("auction") % 123 == 0).select("auction", "price")


def q5(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the auctions with the most bids, for every window of 10 s, one each 2 s."""
    step = pl.col("dateTime").to_physical() // _STEP_US
    counts = rows.group_by("auction", step.alias("step")).agg(pl.len().cast(pl.Int64).alias("num"))
    windows = pl.concat([counts.with_columns(step=pl.col("step") + k + 1) for k in range(_SLIDES)])
    totals = windows.group_by("auction", "step").agg(pl.col("num").sum())
    hot = totals.filter(pl.col("num") == pl.col("num").max().over("step"))
    return hot.select("auction", "num", window_end=(pl.col("step") * _STEP_US).cast(_TIME))


def q7(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the bids with the highest price, for every window of 10 s."""
    window = pl.col("dateTime").to_physical() // _WINDOW_US
    return rows.filter(pl.col("price") == pl.col("price").max().over(window))


def q11(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the bids of each bidder's sessions, which end after 10 s without a bid."""
    times = rows.select("bidder", time=pl.col("dateTime").to_physical()).sort("bidder", "time")
    begins = (pl.col("bidder").diff().fill_null(1) != 0) | (pl.col("time").diff().fill_null(0) > _WINDOW_US)
    sessions = times.with_columns(session=begins.cum_sum()).group_by("session")
    return sessions.agg(
        pl.col("bidder").first(),
        pl.col("time").min().cast(_TIME).alias("window_start"),
        (pl.col("time").max() + _WINDOW_US).cast(_TIME).alias("window_end"),
        pl.len().cast(pl.Int64).alias("bid_count"),
    )


def q12(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the bids of each bidder; their windows depend on the clock."""
    counts = rows.group_by("bidder").agg(pl.len().cast(pl.Int64).alias("bid_count"))
    return counts.with_columns(weighted=pl.col("bidder") * pl.col("bid_count"))


def q17(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return for every bid its auction's number of bids that day; the other columns depend on the order."""
    day = pl.col("dateTime").dt.date()
    return rows.select("auction", total_bids=pl.int_range(1, pl.len() + 1).over("auction", day))


def q18(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the bids; which ones are emitted depends on the order in which the source's splits arrive."""
    return rows
