"""What the jobs of the benchmarks have in common: an environment in the folder, and the stream of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock as ps
from penstock_connectors.workloads import WorkloadSource

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.api.data_stream import DataStream
    from penstock.bench.options import BenchOptions


def environment(options: BenchOptions, folder: Path) -> ps.Environment:
    """Return an environment with the options' parallelism and checkpoints, its state in the folder."""
    interval = options.interval_ms
    return ps.Environment(
        parallelism=options.parallelism,
        checkpoint_interval=None if interval is None else interval / 1000,
        checkpoint_root=folder / "checkpoints",
    )


def events_of(
    env: ps.Environment,
    options: BenchOptions,
    folder: Path,
    count: int,
    keys: int = 100_000,
    *,
    skewed: bool = False,
) -> DataStream:
    """Return the stream of `count` events, one split a subtask, event time 5 s out of order."""
    source = WorkloadSource(
        events=count,
        keys=keys,
        splits=options.parallelism,
        key_type=options.keys,
        nullable=options.nullable,
        marks=str(folder / "marks"),
        skewed=skewed,
    )
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    return env.from_source(source, watermarks=strategy, uid="events")
