"""The process that submits a benchmark's job: `python -m penstock_lab.bench.measuring.child BUILD FOLDER OPTIONS`.

BUILD names a function of (options, folder) that builds a job and executes it on an embedded cluster. The cluster's
figures at the end go to FOLDER/outcome.json. Started by `penstock_lab.bench.measuring.measure`.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.environment import use_executor
from penstock.client.executors import EmbeddedExecutor
from penstock.core.errors import PenstockError
from penstock_lab.bench.measuring.measure import JobRun
from penstock_lab.bench.options import BenchOptions

if TYPE_CHECKING:
    from penstock.client.handle import JobHandle


def main(build: str, folder: Path, options: BenchOptions) -> None:
    """Run the job and write the outcome."""
    runs: list[JobRun] = []

    running: list[float] = []

    def on_poll(handle: JobHandle, job: dict[str, Any]) -> None:
        if job["state"] == "RUNNING" and not running:
            running.append(time.time())
        if job["state"] == "FINISHED":
            runs.append(_run_of(handle, running[0] if running else 0.0))

    module, _, function = build.partition(":")
    with use_executor(EmbeddedExecutor(on_poll=on_poll), options.settings):
        getattr(importlib.import_module(module), function)(options, folder)
    (folder / "outcome.json").write_bytes(msgspec.json.encode(runs[-1] if runs else JobRun()))


def _run_of(handle: JobHandle, running_at: float) -> JobRun:
    found = handle.client.checkpoints(handle.job_id)
    done = [entry for entry in found["history"] if entry["status"] == "COMPLETED"]
    return JobRun(
        checkpoints=found["counts"]["completed"],
        checkpoint_bytes=sum(int(entry["checkpointed_size"]) for entry in done),
        checkpoint_puts=sum(int(entry["objects_written"]) for entry in done),
        bytes_per_checkpoint=[int(entry["checkpointed_size"]) for entry in reversed(done)],
        puts_per_checkpoint=[int(entry["objects_written"]) for entry in reversed(done)],
        max_freeze_ms=round(max((float(entry["max_sync_duration"]) for entry in done), default=0.0), 3),
        restarts=int(handle.client.summary(handle.job_id)["restarts"]),
        running_at=running_at,
        state_memory_peak_bytes=_state_memory(handle.client.metrics(handle.job_id)),
    )


def _state_memory(tasks: dict[str, dict[str, float]]) -> int:
    """Return the largest sum over a slot: subtasks of one number share a slot."""
    slots: dict[str, float] = {}
    for task, metrics in tasks.items():
        number = task.rpartition("/")[2]
        slots[number] = slots.get(number, 0.0) + metrics.get("managedMemoryPeak", 0.0)
    return int(max(slots.values(), default=0.0))


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=BenchOptions))
    except PenstockError as error:
        sys.exit(str(error))
