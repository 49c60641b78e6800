"""Runs a job in a separate process and measures its process tree from outside; wrong answers give no figures.

A workload names the function that builds its job (`BenchJob.build`). The child process (`child`) runs it on an embedded
cluster, as `penstock run` does. Source and sink write the times of the first record and the last result to the job's
folder. CPU seconds are those between the two; start-up is reported separately.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.config.settings import JobSettings
from penstock.core.errors import PenstockError
from penstock_lab.bench.measuring.comparisons import (
    FEW_EVENTS,
    FEW_RUNS,
    marginal_figures,
    measure_latency,
    measure_pairs,
)
from penstock_lab.bench.measuring.delays import Results, latency_figures
from penstock_lab.bench.measuring.peers import Contest, run_peers
from penstock_lab.bench.measuring.reference import agrees
from penstock_lab.bench.measuring.tree_meter import TreeMeter, become_reaper
from penstock_lab.bench.options import BenchOptions
from penstock_lab.workloads import read_marks
from penstock_lab.workloads.delays import read_delays, read_schedules

if TYPE_CHECKING:
    from penstock_lab.bench.measuring.peers import Trial
    from penstock_lab.workloads import Marks

_CHILD = "penstock_lab.bench.measuring.child"
_LIMIT_SECONDS = 3600
_TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """A job to measure."""

    workload: str
    #: `module:function` of (options, folder), which builds and executes the job and keeps its marks in the folder.
    build: str
    #: The right answer for a number of events, computed without the engine.
    right: Callable[[int], str]
    events: int
    #: The kind of results, and the bound of the watermark: for delays.
    results: Results = "rows"
    bound_ms: int = 5000
    #: For peers that read from a broker: creates the topics of a run.
    prepare: Callable[[int], Trial] | None = None


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """The child's report about its job."""

    checkpoints: int = 0
    #: Over the last hundred checkpoints; PUTs are objects of state and output and the manifest.
    checkpoint_bytes: int = 0
    checkpoint_puts: int = 0
    bytes_per_checkpoint: list[int] = []
    puts_per_checkpoint: list[int] = []
    #: Longest synchronous part of any subtask.
    max_freeze_ms: float = 0.0
    restarts: int = 0
    #: The most managed memory that the stateful subtasks of one slot held and used.
    state_memory_peak_bytes: int = 0
    #: When the job was first seen running, seconds since the epoch.
    running_at: float = 0.0


def measure_job(job: BenchJob, options: BenchOptions) -> dict[str, Any]:
    """Run the job once; return the figures.

    Raises:
        PenstockError: the job failed, or its answer is wrong.
    """
    if options.pairs:
        return measure_pairs(options, lambda chosen: _measure_once(job, chosen))
    if options.latency:
        return measure_latency(job.events, options, lambda events, chosen: _measure_events(job, events, chosen))
    found = _measure_once(job, options)
    if options.peers is not None:
        found |= beside_peers(job, options, found)
    return found


def beside_peers(job: BenchJob, options: BenchOptions, found: dict[str, Any]) -> dict[str, Any]:
    """Return the marginal cost of a job with the figures `found`, if a peer has one, and the peers' figures.

    Raises:
        PenstockError: a run of the job with few events failed, or its answer is wrong.
    """
    asked, own = contest(job, options), dict[str, Any]()
    if job.events > FEW_EVENTS and any(peer.few_events is not None for peer in asked.peers):
        totals = [_total_of_few(job, options) for _ in range(FEW_RUNS)]
        own = marginal_figures(job.events, found["cpu_seconds_total"], FEW_EVENTS, totals)
    return own | run_peers(asked, found["events_per_cpu_second"], own.get("marginal_events_per_cpu_second"))


def contest(job: BenchJob, options: BenchOptions) -> Contest:
    """Return the task for the peers of a job."""
    managed = options.managed_memory_bytes
    return Contest(
        folder=options.peers,
        workload=job.workload,
        events=job.events,
        right=job.right,
        # a peer has one process for all slots
        managed_bytes=managed * options.parallelism if managed != JobSettings().managed_bytes else None,
        checkpoint_ms=options.interval_ms or 0,
        prepare=job.prepare,
    )


def _total_of_few(job: BenchJob, options: BenchOptions) -> float:
    """Return the CPU seconds of the process tree in a run of few events."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        meter, _ = run_child(job.build, msgspec.structs.replace(options, events=FEW_EVENTS), Path(folder))
        marks = read_marks(Path(folder) / "marks")
    require_right(job.workload, marks.checksum, job.right(FEW_EVENTS))
    return meter.total


def _measure_once(job: BenchJob, options: BenchOptions) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        meter, run = run_child(job.build, options, Path(folder))
        place = Path(folder) / "marks"
        marks, seen, schedules = read_marks(place), read_delays(place), read_schedules(place)
    require_right(job.workload, marks.checksum, job.right(job.events))
    found = figures(job, options, marks, meter) | memory_figures(options, run, marks, meter) | checkpoint_figures(run)
    if options.rate is not None:
        late = latency_figures(seen, schedules, job.results, bound_ms=job.bound_ms, settle_ms=options.settle_ms)
        found["latency"] = late
    return found


def _measure_events(job: BenchJob, events: int, options: BenchOptions) -> dict[str, Any]:
    return _measure_once(replace(job, events=events), msgspec.structs.replace(options, events=events))


def checkpoint_figures(run: JobRun) -> dict[str, Any]:
    """Return a run's figures about its checkpoints."""
    hidden = ("running_at", "state_memory_peak_bytes")
    return {name: value for name, value in msgspec.to_builtins(run).items() if name not in hidden}


def memory_figures(options: BenchOptions, run: JobRun, marks: Marks, meter: TreeMeter) -> dict[str, Any]:
    """Return the parts of a slot worker's memory: before the first record, state, and the rest.

    State and rest are maxima, which may be of different times and workers. None: the job ended before its workers were
    sampled.
    """
    state = run.state_memory_peak_bytes / 1e6
    found = {
        "managed_memory_mb": round(options.managed_memory_bytes / 1e6, 1),
        "state_memory_mb": round(state, 1),
    }
    seen = meter.workers_private_mb(marks.first_record)
    if seen is None:
        names = ("worker_private_mb", "worker_fixed_mb", "worker_growth_mb", "worker_buffers_mb")
        return found | dict.fromkeys(names)
    private, growth = seen
    return found | {
        "worker_private_mb": private,
        "worker_fixed_mb": private - growth,
        "worker_growth_mb": growth,
        "worker_buffers_mb": round(max(0.0, growth - state), 1),
    }


def run_child(build: str, options: BenchOptions, folder: Path, child: str = _CHILD) -> tuple[TreeMeter, JobRun]:
    """Run a job in a child process, of the module `child`, and meter its tree; the job's files go to the folder.

    Raises:
        PenstockError: the child failed; with the end of its output.
    """
    become_reaper()
    log, outcome = folder / "child.log", folder / "outcome.json"
    command = [sys.executable, "-m", child, build, str(folder), msgspec.json.encode(options).decode()]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        meter = TreeMeter(process.pid)
        meter.start()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LIMIT_SECONDS)
        finally:
            meter.stop()
    finally:  # also after Ctrl-C: the job's processes end with the child
        process.kill()
        code = process.wait()
    if code or not outcome.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"it ended with {code}"
        if os.environ.get("PENSTOCK_TRACEBACK"):
            said = "\n".join(lines[-_TAIL_LINES:])
        raise PenstockError(f"the benchmark's job failed: {said}", hint="PENSTOCK_TRACEBACK=1 prints more of it")
    return meter, msgspec.json.decode(outcome.read_bytes(), type=JobRun)


def require_right(workload: str, found: str, expected: str) -> None:
    """Accept only the right answer; a part of it that is `*` may be anything.

    Raises:
        PenstockError: the answer is wrong.
    """
    if not agrees(found, expected):
        raise PenstockError(f"{workload}: the checksum is {found}, expected {expected}", hint="no figures are reported")


def figures(job: BenchJob, options: BenchOptions, marks: Marks, meter: TreeMeter) -> dict[str, Any]:
    """Return the figures common to all workloads, in their order."""
    wall = marks.last_result - marks.first_record
    cpu = meter.cpu_between(marks.first_record, marks.last_result)
    return {
        "workload": job.workload,
        "events": job.events,
        "parallelism": options.parallelism,
        "wall_seconds": round(wall, 3),
        "cpu_seconds": round(cpu, 3),
        "events_per_cpu_second": round(job.events / cpu) if cpu else 0,
        "peak_rss_mb": meter.peak_rss_bytes // 1_000_000,
        "checksum": marks.checksum,
        "events_per_second": round(job.events / wall) if wall else 0,
        "cpu_seconds_per_million_events": round(cpu / job.events * 1e6, 4),
        "first_result_seconds": round(marks.first_result - meter.started, 3),
        "cpu_seconds_total": round(meter.total, 3),
        "cpu_seconds_by_process": meter.by_process(),
        "load": round(os.getloadavg()[0], 1),
    }
