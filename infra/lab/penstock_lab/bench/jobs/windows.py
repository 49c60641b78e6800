"""w1, w1s, w1hot, w1skew: rows by user, count and sum of amount in windows of event time, a checksum of all results."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock_lab.bench.jobs.sources import Events, environment, events_of, timed
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.measure import BenchJob, measure_job

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.api.windows.windows import Window
    from penstock_lab.bench.options import BenchOptions

_EVENTS = 10_000_000
_SIZE_MS, _SLIDE_MS = 10_000, 1_000
_FEW = 100


def w1(options: BenchOptions) -> dict[str, Any]:
    """Measure tumbling windows of 10 s."""
    return _measure("w1", options, _SIZE_MS)


def w1s(options: BenchOptions) -> dict[str, Any]:
    """Measure sliding windows of 10 s, one per second."""
    return _measure("w1s", options, _SLIDE_MS)


def w1hot(options: BenchOptions) -> dict[str, Any]:
    """Measure w1 with 100 users."""
    return _measure("w1hot", options, _SIZE_MS, reference.Users(_FEW))


def w1skew(options: BenchOptions) -> dict[str, Any]:
    """Measure w1 with few users that have most of the events."""
    return _measure("w1skew", options, _SIZE_MS, reference.Users(skewed=True))


def build_w1(options: BenchOptions, folder: Path) -> None:
    """Run the job of w1."""
    _execute(options, folder, ps.Tumbling("10s"), _SIZE_MS)


def build_w1s(options: BenchOptions, folder: Path) -> None:
    """Run the job of w1s."""
    _execute(options, folder, ps.Sliding("10s", "1s"), _SLIDE_MS)


def build_w1hot(options: BenchOptions, folder: Path) -> None:
    """Run the job of w1hot."""
    _execute(options, folder, ps.Tumbling("10s"), _SIZE_MS, reference.Users(_FEW))


def build_w1skew(options: BenchOptions, folder: Path) -> None:
    """Run the job of w1skew."""
    _execute(options, folder, ps.Tumbling("10s"), _SIZE_MS, reference.Users(skewed=True))


def _measure(
    name: str, options: BenchOptions, slide_ms: int, users: reference.Users = reference.EVEN
) -> dict[str, Any]:
    count = options.events_or(_EVENTS)
    right = cache(lambda events: reference.windows(events, _SIZE_MS, slide_ms, nullable=options.nullable, users=users))
    build = f"penstock_lab.bench.jobs.windows:build_{name}"
    job = BenchJob(workload=name, build=build, right=right, events=count, results="windows")
    return measure_job(job, options)


def _execute(
    options: BenchOptions, folder: Path, window: Window, slide_ms: int, users: reference.Users = reference.EVEN
) -> None:
    from penstock_lab.workloads import ChecksumSink

    count = options.events_or(_EVENTS)
    env = environment(options, folder)
    sink = ChecksumSink(
        folder=str(folder / "marks"),
        form="windows",
        columns=("user_id", "window_end", "cnt", "sm"),
        unit_us=slide_ms * 1000,
        cut_us=reference.last_sure_window(count, slide_ms) * 1000,
        **timed(options, "windows"),
    )
    events = Events(count=count, keys=users.keys, skewed=users.skewed, results="windows")
    (
        events_of(env, options, folder, events)
        .key_by("user_id")
        .window(window)
        .aggregate(cnt=ps.count(), sm=ps.sum("amount"))
        .uid("windows")
        .sink_to(sink, uid="out")
    )
    env.execute("bench")
