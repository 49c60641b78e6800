"""workers: the memory of slot workers that run one keyed job, after a few seconds of light work.

A page shared by processes counts fully in RSS, in equal parts in PSS, and not at all in USS, the memory that ending one
worker would free. Workers are forked from a template, so most of their pages are shared until they are written to.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.api.environment import use_executor
from penstock.client.executors import EmbeddedExecutor
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.handle import JobHandle
    from penstock_lab.bench.options import BenchOptions

_SETTLE_MS, _LIMIT_MS, _ROWS_PER_WORKER = 5_000.0, 240_000.0, 10.0
_LONG = 1 << 31


def workers(options: BenchOptions) -> dict[str, Any]:
    """Run a job with `--parallelism` workers for a few seconds, and measure their memory.

    Raises:
        PenstockError: the job did not run for long enough.
    """
    watch = _Watch()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        executor = EmbeddedExecutor(on_poll=watch.on_poll)
        with use_executor(executor, options.settings):
            _job(options, Path(folder))
    if not watch.memory:
        raise PenstockError("the job did not run long enough to measure its workers")
    figures: dict[str, Any] = {
        "workload": "workers",
        "parallelism": options.parallelism,
        "workers": len(watch.memory),
        "running_after_seconds": round(watch.running_ms / 1000, 2),
    }
    for name in ("rss", "pss", "uss"):
        values = [found[name] for found in watch.memory]
        figures |= {
            f"{name}_mb": round(statistics.median(values), 1),
            f"{name}_mb_largest": round(max(values), 1),
            f"{name}_mb_all": round(sum(values), 1),
        }
    return {**figures, "load": round(os.getloadavg()[0], 1)}


class _Watch:
    """Measures the workers once the job has run for a while, then ends it."""

    def __init__(self) -> None:
        self.memory: list[dict[str, float]] = []
        self.running_ms = 0.0
        self._clock = SystemClock()
        self._first_ms = self._clock.monotonic_ms()
        self._since_ms: float | None = None

    def on_poll(self, handle: JobHandle, job: dict[str, Any]) -> None:
        now = self._clock.monotonic_ms()
        if now - self._first_ms > _LIMIT_MS:
            handle.cancel()
        if job["state"] != "RUNNING":
            self._since_ms = None
        if job["state"] != "RUNNING" or self.memory:
            return
        if self._since_ms is None:
            self._since_ms, self.running_ms = now, now - self._first_ms
        if now - self._since_ms >= _SETTLE_MS:
            try:
                self.memory = [memory_of(int(worker["pid"])) for worker in handle.client.workers(handle.job_id)]
            except (FileNotFoundError, ProcessLookupError):
                self._since_ms = None  # a worker was just lost: wait until all run again
            else:
                handle.cancel()


def memory_of(pid: int) -> dict[str, float]:
    """Return a process's memory in MB: `rss`, `pss`, `uss` (Linux)."""
    sizes: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) / 1000 * 1.024
    return {"rss": sizes["Rss"], "pss": sizes["Pss"], "uss": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def _job(options: BenchOptions, folder: Path) -> None:
    from penstock_lab.workloads import ChecksumSink, WorkloadSource
    from penstock_lab.workloads.paced import PacedSource

    env = ps.Environment(
        parallelism=options.parallelism, checkpoint_interval="10s", checkpoint_root=folder / "checkpoints"
    )
    events = WorkloadSource(events=_LONG, splits=options.parallelism)
    source = PacedSource(source=events, splits=options.parallelism, rate=_ROWS_PER_WORKER * options.parallelism)
    rows = env.from_source(source, uid="rows").select("user_id", "amount", "due")
    sink = ChecksumSink(folder=str(folder / "marks"), form="rows", columns=("user_id", "due", "amount", "amount"))
    rows.key_by("user_id").sink_to(sink, uid="out")
    env.execute("bench")
