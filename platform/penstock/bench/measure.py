"""Runs a job in a process of its own and measures its whole tree from outside; wrong answers give no figures.

A workload names the function that builds its job (`BenchJob.build`); the child process (`penstock.bench.child`) runs it
on an embedded cluster, the same as `penstock run` makes. Source and sink leave the moments of the first record and the
last result in the job's folder; CPU seconds are those between the two, start-up stands beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.options import BenchOptions
from penstock.bench.peers import run_peers
from penstock.bench.reference import agrees
from penstock.bench.tree_meter import TreeMeter, become_reaper
from penstock.core.errors import PenstockError
from penstock_connectors.workloads import read_marks

if TYPE_CHECKING:
    from penstock_connectors.workloads import Marks

_CHILD = "penstock.bench.child"
_LIMIT_SECONDS = 3600
_TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """One job to be measured."""

    workload: str
    #: `module:function` of (options, folder), which builds and executes the job, keeping its marks in the folder.
    build: str
    #: The right answer, computed without the engine.
    checksum: str
    events: int


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the child says of the job it ran."""

    checkpoints: int = 0
    checkpoint_bytes: int = 0
    restarts: int = 0


def measure_job(job: BenchJob, options: BenchOptions) -> dict[str, Any]:
    """Run the job once; return the figures.

    Raises:
        PenstockError: the job failed, or its answer is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        meter, run = run_child(job.build, options, Path(folder))
        marks = read_marks(Path(folder) / "marks")
    require_right(job.workload, marks.checksum, job.checksum)
    found = {**figures(job, options, marks, meter), **msgspec.to_builtins(run)}
    if options.peers is not None:
        found["peers"] = run_peers(options.peers, job.workload, job.events, job.checksum)
    return found


def run_child(build: str, options: BenchOptions, folder: Path) -> tuple[TreeMeter, JobRun]:
    """Run a job in a child process, metering its tree; the folder gets whatever the job leaves.

    Raises:
        PenstockError: the child failed; with the end of what it said.
    """
    become_reaper()
    log, outcome = folder / "child.log", folder / "outcome.json"
    command = [sys.executable, "-m", _CHILD, build, str(folder), msgspec.json.encode(options).decode()]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    meter = TreeMeter(process.pid)
    meter.start()
    try:
        code = process.wait(_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    finally:
        meter.stop()
    if code or not outcome.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"it ended with {code}"
        if os.environ.get("PENSTOCK_TRACEBACK"):
            said = "\n".join(lines[-_TAIL_LINES:])
        raise PenstockError(f"the benchmark's job failed: {said}", hint="PENSTOCK_TRACEBACK=1 prints more of it")
    return meter, msgspec.json.decode(outcome.read_bytes(), type=JobRun)


def require_right(workload: str, found: str, expected: str) -> None:
    """Let only the right answer pass; a part of the right one that is `*` may be anything.

    Raises:
        PenstockError: it is wrong.
    """
    if not agrees(found, expected):
        raise PenstockError(f"{workload}: the checksum is {found}, right is {expected}", hint="no figure is given")


def figures(job: BenchJob, options: BenchOptions, marks: Marks, meter: TreeMeter) -> dict[str, Any]:
    """Return the figures every workload has, in their order."""
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
        "checksum": job.checksum,
        "cpu_seconds_total": round(meter.total, 3),
        "cpu_seconds_by_process": meter.by_process(),
        "load": round(os.getloadavg()[0], 1),
    }
