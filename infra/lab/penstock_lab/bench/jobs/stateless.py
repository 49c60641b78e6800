"""w3 and shuffle: rows that are only transformed, and rows that are only sent to the owner of their key."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from penstock_lab.bench.jobs.sources import Events, due, environment, events_of, timed
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.measure import BenchJob, measure_job

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_lab.bench.options import BenchOptions

_EVENTS = 10_000_000


def w3(options: BenchOptions) -> dict[str, Any]:
    """Keep the users that 4 does not divide, with amount * 908 div 1000."""
    return _measure("w3", options, reference.kept_rows)


def shuffle(options: BenchOptions) -> dict[str, Any]:
    """Send every row to the owner of its key."""
    return _measure("shuffle", options, reference.all_rows)


def build_w3(options: BenchOptions, folder: Path) -> None:
    """Run the job of w3: three operators in one chain."""
    import polars as pl

    from penstock_lab.workloads import ChecksumSink

    env = environment(options, folder)
    events = events_of(env, options, folder, Events(count=options.events_or(_EVENTS)))
    kept = events.filter(pl.col("user_id") % 4 != 0)
    result = kept.select("user_id", (pl.col("amount") * 908 // 1000).alias("net"), "ts", *due(options))
    columns = ("user_id", "ts", "net", "net")
    sink = ChecksumSink(folder=str(folder / "marks"), form="rows", columns=columns, **timed(options, "rows"))
    result.sink_to(sink, uid="out")
    env.execute("bench")


def build_shuffle(options: BenchOptions, folder: Path) -> None:
    """Run the job of shuffle."""
    from penstock_lab.workloads import ChecksumSink

    env = environment(options, folder)
    rows = events_of(env, options, folder, Events(count=options.events_or(_EVENTS))).key_by("user_id")
    columns = ("user_id", "ts", "amount", "amount")
    sink = ChecksumSink(folder=str(folder / "marks"), form="rows", columns=columns, **timed(options, "rows"))
    rows.sink_to(sink, uid="out")
    env.execute("bench")


def _measure(name: str, options: BenchOptions, expected: Any) -> dict[str, Any]:
    options.refuse_variants(name, strings=name != "w3")
    count = options.events_or(_EVENTS)
    job = BenchJob(
        workload=name, build=f"penstock_lab.bench.jobs.stateless:build_{name}", right=cache(expected), events=count
    )
    return measure_job(job, options)
