"""w2 and w2x: count and sum by key after every event, a million keys (or as many as are asked for), RocksDB backend.

A checkpoint every 5 s.

w2x is the same with so little managed memory that about one key in ten is in the hot table.

The sum of the sums as of each event is right in one order of events only: with one split it is compared, with several
it stands as `*`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

import penstock as ps
from penstock_lab.bench.jobs.sources import Events, due, environment, events_of, timed
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.measure import BenchJob, measure_job
from penstock_lab.bench.options import BenchOptions

if TYPE_CHECKING:
    from pathlib import Path

_EVENTS = 10_000_000
_KEYS = 1_000_000
_INTERVAL_MS = 5_000
_BACKEND = {"state_backend": "rocksdb"}
_LITTLE = {"managed_memory_bytes": str(8 << 20)}


def w2(options: BenchOptions) -> dict[str, Any]:
    """Measure with all keys in the hot table."""
    return _measure("w2", options, _BACKEND)


def w2x(options: BenchOptions) -> dict[str, Any]:
    """Measure with most keys on disk."""
    return _measure("w2x", options, _BACKEND | _LITTLE)


def build(options: BenchOptions, folder: Path) -> None:
    """Run the job of both."""
    from penstock_lab.workloads import ChecksumSink

    env = environment(options, folder)
    aggregates = {"n": ps.count(), "total": ps.sum("amount")}
    aggregates |= {name: ps.max(name) for name in due(options)}  # for rows in order, the value of the row itself
    running = (
        events_of(env, options, folder, Events(count=options.events_or(_EVENTS), keys=options.key_count or _KEYS))
        .key_by("user_id")
        .aggregate(**aggregates)
        .uid("running")
    )
    columns = ("user_id", "n", "total", "n")
    sink = ChecksumSink(folder=str(folder / "marks"), form="rows", columns=columns, **timed(options, "rows"))
    running.sink_to(sink, uid="out")
    env.execute("bench")


def _measure(name: str, options: BenchOptions, settings: dict[str, str]) -> dict[str, Any]:
    options.refuse_variants(name)
    options = options.with_interval(_INTERVAL_MS)
    options = msgspec.structs.replace(options, settings=settings | options.settings)
    count = options.events_or(_EVENTS)
    keys = options.key_count or _KEYS
    right = cache(lambda events: reference.running(events, keys, ordered=options.parallelism == 1))
    job = BenchJob(workload=name, build="penstock_lab.bench.jobs.running:build", right=right, events=count)
    return measure_job(job, options)
