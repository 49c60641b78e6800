"""latency: delay of rows after a shuffle at half of the job's highest rate; also next to a row function.

The rows are small, with only a key and a number. Reports only the figures that every workload has with `--latency`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

import penstock as ps
from penstock.core.errors import PenstockError
from penstock_lab.bench.jobs.sources import due, environment, paced, timed
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.measure import BenchJob, measure_job
from penstock_lab.workloads import ChecksumSink, WorkloadSource, read_marks

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_lab.bench.options import BenchOptions

_FAST_ROWS = {"latency": 60_000_000, "latency-rows": 4_000_000}
_COLUMNS = ("user_id", "amount", "amount", "amount")
_SHOWN = ("workload", "parallelism", "cpu_seconds_total")


def latency(options: BenchOptions) -> dict[str, Any]:
    """Send rows to the owners of their keys."""
    return _measure("latency", options)


def latency_rows(options: BenchOptions) -> dict[str, Any]:
    """Do the same, while every row also goes through a Python function in the same slots."""
    return _measure("latency-rows", options)


def build(options: BenchOptions, folder: Path) -> None:
    """Run the job."""
    _job(options, folder, "latency")


def build_rows(options: BenchOptions, folder: Path) -> None:
    """Run the job with the row function.

    Raises:
        PenstockError: rows of the function are missing.
    """
    _job(options, folder, "latency-rows")
    wanted = options.events_or(_FAST_ROWS["latency-rows"])
    rows = read_marks(folder / "beside").sums[0]
    if rows != wanted:
        raise PenstockError(f"{rows} rows came out of the function, expected {wanted}", hint="no figures are reported")


class Row(ps.Schema):
    """The input and output row of the row function."""

    user_id: int
    amount: int
    due: int


def touched(row: Row) -> Row:
    """Return a slightly changed row."""
    return Row(user_id=row.user_id, amount=row.amount + 1, due=row.due)


def _job(options: BenchOptions, folder: Path, name: str) -> None:
    env = environment(options, folder)
    source = WorkloadSource(
        events=options.events_or(_FAST_ROWS[name]), splits=options.parallelism, marks=str(folder / "marks")
    )
    events = env.from_source(paced(source, options, folder, "rows", "ts"), uid="rows")
    rows = events.select("user_id", "amount", *due(options))
    sink = ChecksumSink(folder=str(folder / "marks"), form="rows", columns=_COLUMNS, **timed(options, "rows"))
    rows.key_by("user_id").sink_to(sink, uid="out")
    if name == "latency-rows":
        beside = ChecksumSink(folder=str(folder / "beside"), form="rows", columns=_COLUMNS)
        rows.key_by("amount").map(touched).sink_to(beside, uid="beside")
    env.execute("bench")


def _measure(name: str, options: BenchOptions) -> dict[str, Any]:
    job = BenchJob(
        workload=name,
        build=f"penstock_lab.bench.jobs.latency:build{'_rows' if name == 'latency-rows' else ''}",
        right=cache(_right),
        events=options.events_or(_FAST_ROWS[name]),
    )
    found = measure_job(job, msgspec.structs.replace(options, latency=True))
    late: dict[str, Any] = found["latency"]
    return {key: found[key] for key in _SHOWN} | late


def _right(events: int) -> str:
    rows, _, amount, check = reference.all_rows(events).split(":")
    return f"{rows}:{amount}:{amount}:{check}"
