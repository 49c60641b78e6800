"""w4: JSON events in Kafka, w1's windows, results in Kafka exactly once; by default a checkpoint every 5 s.

Two clients always run too, as upper bounds: `bare-client`, confluent-kafka's `consume` in a loop that discards the
messages, and `reader-json`, penstock's own reader and decoder without a job. From a million events on the job also runs
with few events. The difference is the marginal cost of an event, in which start-up, class loading and compilation
cancel for all of them. Figures of the run cover the time from the job's start of running to its end.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import penstock as ps
from penstock.core.errors import PenstockError, UsageError
from penstock_connectors.kafka import KafkaSink, KafkaSource
from penstock_lab.bench.jobs.sources import environment, paced
from penstock_lab.bench.jobs.topics import PARTITIONS, Topics, stops, windows
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.comparisons import marginal_figures, measure_latency
from penstock_lab.bench.measuring.delays import latency_figures
from penstock_lab.bench.measuring.measure import (
    BenchJob,
    checkpoint_figures,
    contest,
    figures,
    memory_figures,
    require_right,
    run_child,
)
from penstock_lab.bench.measuring.peers import Peer, run_peers
from penstock_lab.bench.options import BenchOptions
from penstock_lab.workloads import Marks
from penstock_lab.workloads.delays import Delays, read_schedules

if TYPE_CHECKING:
    from penstock_lab.bench.jobs.topics import Int64s
    from penstock_lab.bench.measuring.tree_meter import TreeMeter
    from penstock_lab.workloads.delays import Schedule

_EVENTS = 1_000_000
#: From this number of events on the job also runs with few.
_MANY, _FEW = 1_000_000, 200_000
_INTERVAL_MS = 5_000
_SIZE_MS = 10_000


class Event(ps.Schema):
    """A message of the topic."""

    user_id: int
    amount: int
    ts_ms: int


class _Topics(msgspec.Struct, frozen=True):
    """The topics for the job's process."""

    source: str
    sink: str
    #: Events in each partition of the source.
    stops: dict[int, int]


def own_peers(few: int | None) -> tuple[Peer, ...]:
    """Return the clients without a job."""
    program = ("{python}", "-m", "penstock_lab.bench.jobs.kafka_clients")
    return tuple(
        Peer(
            name=name,
            rival=name,
            workloads=("w4",),
            command=(*program, name, "{bootstrap}", "{topic}", "{stops}"),
            broker=True,
            few_events=few,
            answers=False,  # they read the events and end when they have all of them
        )
        for name in ("bare-client", "reader-json")
    )


def w4(options: BenchOptions) -> dict[str, Any]:
    """Measure the workload."""
    options.refuse_variants("w4")
    if options.bootstrap is None:
        raise UsageError("w4 needs a Kafka broker", hint="`penstock bench` starts one, or takes --bootstrap")
    topics = Topics(options.bootstrap)
    options = options.with_interval(_INTERVAL_MS)
    right = cache(lambda events: reference.windows(events, _SIZE_MS, _SIZE_MS))
    job = BenchJob(
        workload="w4",
        build="penstock_lab.bench.jobs.kafka_windows:build",
        right=right,
        events=options.events_or(_EVENTS),
        prepare=topics.trial_with_output,
    )
    if options.latency:
        return measure_latency(
            job.events, options, lambda events, chosen: _measure_once(replace(job, events=events), chosen, topics)[0]
        )
    found, meter = _measure_once(job, options, topics)
    few, marginal = _FEW if job.events >= _MANY else None, None
    if few is not None:
        _, small = _measure_once(replace(job, events=few), options, topics)
        found |= marginal_figures(job.events, meter.total, few, (small.total,))
        marginal = found.get("marginal_events_per_cpu_second")
    asked = replace(contest(job, options), own=own_peers(few))
    return found | run_peers(asked, found["events_per_cpu_second"], marginal)


def _measure_once(job: BenchJob, options: BenchOptions, topics: Topics) -> tuple[dict[str, Any], TreeMeter]:
    source, sink = topics.source(job.events), topics.sink()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        (Path(folder) / "topics").write_bytes(msgspec.json.encode(_Topics(source, sink, stops(job.events))))
        chosen = msgspec.structs.replace(options, events=job.events)
        meter, run = run_child(job.build, chosen, Path(folder))
        ended = float((Path(folder) / "ended").read_text(encoding="ascii"))
        schedules = read_schedules(Path(folder) / "marks")
    written = windows(topics.bootstrap, sink, job.events)
    require_right(job.workload, written.checksum, job.right(job.events))
    if written.events != job.events:  # the checksum contains only windows that are closed before the input ends
        raise PenstockError(
            f"w4: the windows count {written.events} of {job.events} events", hint="no figures are reported"
        )
    marks = Marks(
        first_record=run.running_at,
        last_result=ended,
        sums=tuple(int(part) for part in written.checksum.split(":")),
        first_result=float(written.arrivals[:, 1].min()) / 1e6,
    )
    found = figures(job, chosen, marks, meter) | memory_figures(chosen, run, marks, meter) | checkpoint_figures(run)
    if options.rate is not None:
        seen = [_seen(written.arrivals, schedules)]
        found["latency"] = latency_figures(seen, schedules, "windows", bound_ms=5000, settle_ms=options.settle_ms)
    return found, meter


def _seen(arrivals: Int64s, schedules: tuple[Schedule, ...]) -> Delays:
    """Return the windows' arrivals by the clock of the source; they give no rate.

    They arrive when a checkpoint releases them, the last ones after the input has ended.
    """
    there = arrivals.copy()
    there[:, 1] -= int(schedules[0].wall_ms * 1000)
    return Delays(rows=len(there), first_ms=-1.0, last_ms=-1.0, arrivals=there.tobytes())


def build(options: BenchOptions, folder: Path) -> None:
    """Run the job."""
    bootstrap = str(options.bootstrap)
    topics = msgspec.json.decode((folder / "topics").read_bytes(), type=_Topics)
    ends = {(topics.source, partition): rows for partition, rows in topics.stops.items()}
    messages = KafkaSource(bootstrap, topic=topics.source, schema=Event, start="earliest", bounded=ends)
    source = paced(messages, options, folder, "windows", "ts_ms", PARTITIONS)
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts_ms")
    env = environment(options, folder)
    (
        env.from_source(source, watermarks=strategy, uid="in")
        .key_by("user_id")
        .window(ps.Tumbling("10s"))
        .aggregate(cnt=ps.count(), sm=ps.sum("amount"))
        .uid("window")
        .sink_to(KafkaSink(bootstrap, topic=topics.sink, delivery="exactly-once"), uid="out")
    )
    env.execute("w4")
    (folder / "ended").write_text(str(time.time()), encoding="ascii")
