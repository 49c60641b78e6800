"""The common parts of benchmark jobs: an environment in the folder, and the stream of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock_lab.bench.options import BUFFER_TIMEOUT
from penstock_lab.workloads import WorkloadSource
from penstock_lab.workloads.marks import DUE

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.api.connectors import Source
    from penstock.api.streams import DataStream
    from penstock_lab.bench.measuring.delays import Results
    from penstock_lab.bench.options import BenchOptions


@dataclass(frozen=True, kw_only=True)
class Events:
    """The events that a job reads, and the kind of its results."""

    count: int
    keys: int = 100_000
    skewed: bool = False
    #: Kind of the results at the sink.
    results: Results = "rows"


def environment(options: BenchOptions, folder: Path) -> ps.Environment:
    """Return an environment with the options' parallelism and checkpoints, its state in the folder."""
    interval = options.interval_ms
    chosen: dict[str, Any] = {} if options.rate is None else {"buffer_timeout": BUFFER_TIMEOUT}
    return ps.Environment(
        parallelism=options.parallelism,
        checkpoint_interval=None if interval is None else interval / 1000,
        checkpoint_root=folder / "checkpoints",
        restart="failure-rate",  # a job that fails repeatedly is an error, not worth a wait
        **chosen,
    )


def timed(options: BenchOptions, results: Results) -> dict[str, Any]:
    """Return the arguments with which a checksum sink records delays; empty if none are requested."""
    return {} if options.rate is None else {"timed": results, "settle_ms": options.settle_ms}


def due(options: BenchOptions) -> tuple[str, ...]:
    """Return the column with the time a row was due, if rows carry it."""
    return () if options.rate is None else (DUE,)


def paced(source: Source, options: BenchOptions, folder: Path, results: Results, time: str, splits: int = 0) -> Source:
    """Return the source unchanged, or paced at the options' rate with records for delays.

    `time` is the column of event time; `splits` is by default the parallelism.
    """
    if options.rate is None:
        return source
    from penstock_lab.workloads.paced import PacedSource

    return PacedSource(
        source=source,
        splits=splits or options.parallelism,
        rate=options.rate,
        stamp=results == "rows",
        time=time if results == "windows" else "",
        folder=str(folder / "marks"),
    )


def events_of(env: ps.Environment, options: BenchOptions, folder: Path, events: Events) -> DataStream:
    """Return the stream of events, one split per subtask, event time 5 s out of order."""
    source: Source = WorkloadSource(
        events=events.count,
        keys=events.keys,
        splits=options.parallelism,
        key_type=options.keys,
        nullable=options.nullable,
        marks=str(folder / "marks"),
        skewed=events.skewed,
    )
    source = paced(source, options, folder, events.results, "ts")
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    return env.from_source(source, watermarks=strategy, uid="events")
