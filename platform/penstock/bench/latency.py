"""latency: how late rows are behind a shuffle at half of the rate the same job can take; also beside a row function.

The job runs twice: as fast as it can, which gives its rate, then paced at half of it (`--events`: rows of the second
run). A row's delay is from the moment it was due at the source to the moment the sink has it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import penstock as ps
from penstock.bench.measure import run_child
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.bench.options import BenchOptions
    from penstock_connectors.workloads.paced import Delays

_FAST_ROWS = {"latency": 60_000_000, "latency-rows": 4_000_000}
#: Length of the paced run, and what of its begin is not counted.
_SECONDS, _SETTLE_MS = 12.0, 2000.0
_BUFFER_TIMEOUT = "10ms"


def latency(options: BenchOptions) -> dict[str, Any]:
    """Rows to the owners of their keys."""
    return _measure("latency", options)


def latency_rows(options: BenchOptions) -> dict[str, Any]:
    """The same, while every row also goes through a Python function in the same slots."""
    return _measure("latency-rows", options)


def build_fast(options: BenchOptions, folder: Path) -> None:
    """Run the job as fast as it can."""
    _job(options, folder, "latency", 0.0)


def build_fast_rows(options: BenchOptions, folder: Path) -> None:
    """Run the job with the row function as fast as it can."""
    _job(options, folder, "latency-rows", 0.0)


def build_paced(options: BenchOptions, folder: Path) -> None:
    """Run the job at the rate named in the folder."""
    _job(options, folder, "latency", float((folder / "rate").read_text(encoding="ascii")))


def build_paced_rows(options: BenchOptions, folder: Path) -> None:
    """Run the job with the row function at the rate named in the folder."""
    _job(options, folder, "latency-rows", float((folder / "rate").read_text(encoding="ascii")))


class Row(ps.Schema):
    """What the row function is given and returns."""

    user_id: int
    amount: int
    due: int


def touched(row: Row) -> Row:
    """Do a little with a row."""
    return Row(user_id=row.user_id, amount=row.amount + 1, due=row.due)


def _job(options: BenchOptions, folder: Path, name: str, rate: float) -> None:
    from penstock_connectors.workloads.paced import DelaySink, PacedSource

    interval = options.interval_ms
    env = ps.Environment(
        parallelism=options.parallelism,
        checkpoint_interval=None if interval is None else interval / 1000,
        checkpoint_root=folder / "checkpoints",
        buffer_timeout=_BUFFER_TIMEOUT,
    )
    rows = env.from_source(
        PacedSource(rows=options.events_or(_FAST_ROWS[name]), splits=options.parallelism, rate=rate), uid="rows"
    )
    settle = _SETTLE_MS if rate else 0.0
    rows.key_by("user_id").sink_to(DelaySink(folder=str(folder / "delays"), settle_ms=settle), uid="out")
    if name == "latency-rows":
        beside = rows.key_by("amount").map(touched)
        beside.sink_to(DelaySink(folder=str(folder / "beside"), settle_ms=settle, beside=True), uid="beside")
    env.execute("bench")


def _measure(name: str, options: BenchOptions) -> dict[str, Any]:
    suffix = "_rows" if name == "latency-rows" else ""
    fast = msgspec.structs.replace(options, events=min(_FAST_ROWS[name], 5 * options.events_or(_FAST_ROWS[name])))
    _, seen = _run(f"penstock.bench.latency:build_fast{suffix}", fast, rate=0.0)
    rows = sum(d.rows for d in seen if not d.beside)
    most = rows / (max(d.last_ms for d in seen) - min(d.first_ms for d in seen)) * 1000
    rate = most / 2
    paced = msgspec.structs.replace(options, events=options.events_or(int(rate * _SECONDS)))
    cpu, seen = _run(f"penstock.bench.latency:build_paced{suffix}", paced, rate=rate)
    seen = [d for d in seen if not d.beside]
    counts = np.sum([d.counts for d in seen], axis=0)
    return {
        "workload": name,
        "events": sum(d.rows for d in seen),
        "parallelism": options.parallelism,
        "most_rows_per_second": round(most),
        "rows_per_second": round(rate),
        "buffer_timeout": _BUFFER_TIMEOUT,
        "p50_ms": percentile(counts, 0.5),
        "p99_ms": percentile(counts, 0.99),
        "p999_ms": percentile(counts, 0.999),
        "max_ms": round(max(d.largest_us for d in seen) / 1000, 1),
        "cpu_seconds_total": round(cpu, 3),
        "load": round(os.getloadavg()[0], 1),
    }


def percentile(counts: np.ndarray[Any, Any], share: float) -> float:
    """Return the upper end, in milliseconds, of the bin below which this share of the rows lies; 0 of no rows."""
    from penstock_connectors.workloads.paced import BIN_US

    total = int(counts.sum())
    if not total:
        return 0.0
    bin_ = int(np.searchsorted(np.cumsum(counts), share * total))
    return round((bin_ + 1) * BIN_US / 1000, 1)


def _run(build: str, options: BenchOptions, *, rate: float) -> tuple[float, list[Delays]]:
    from penstock_connectors.workloads.paced import read_delays

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        (Path(folder) / "rate").write_text(str(rate), encoding="ascii")
        meter, _ = run_child(build, options, Path(folder))
        seen = [*read_delays(Path(folder) / "delays"), *read_delays(Path(folder) / "beside")]
    wanted = options.events_or(0)
    for beside in {d.beside for d in seen}:
        rows = sum(d.rows for d in seen if d.beside is beside)
        if not wanted <= rows <= wanted + options.parallelism:  # every split has the same number
            raise PenstockError(f"the sink saw {rows} rows of {wanted}", hint="no figure is given")
    return meter.total, seen
