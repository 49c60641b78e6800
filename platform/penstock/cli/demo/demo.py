"""`penstock demo`: runs the main job on real input.

Kills two workers while it runs, and compares the result with an independent computation.

Without `--kafka`: generator to files, only Python is needed. With it: a real Kafka and a real MinIO, existing or
started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.demo.demo_scenario import KILLS, Scenario, compare
from penstock.cli.options import JsonOption, print_json, say
from penstock.cli.progress import JobProgress
from penstock.client.executors import EmbeddedExecutor
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.handle import JobHandle
    from penstock.client.local_cluster import LocalCluster
    from penstock.graph.executor import JobResult


TASKMANAGERS = 2
#: A worker is killed each time this part of the input has been read since the last (re)start (counters begin at 0).
KILL_AFTER = 0.2


@dataclass
class Killer:
    """Kills a worker of the job with SIGKILL each time the next part of the input has been read."""

    events: int
    note: Callable[[str], None]
    killed: Callable[[int], None]
    cluster: LocalCluster | None = None
    kills: int = 0

    def on_poll(self, handle: JobHandle, job: dict[str, Any]) -> None:
        """Check the job's progress; kill a worker when one is due."""
        if self.kills == KILLS or job["state"] != "RUNNING":
            return
        try:
            summary = handle.client.summary(handle.job_id)
        except PenstockError:  # no answer in time: the next poll asks again
            return
        if summary["state"] != "RUNNING":  # it has failed since the job was looked at
            return
        if summary["source-records"] < KILL_AFTER * self.events or summary["restarts"] < self.kills:
            return
        workers = handle.client.workers(handle.job_id)
        if not workers or summary["checkpoints-completed"] <= self.kills:
            return
        victim = workers[self.kills % len(workers)]
        os.kill(int(victim["pid"]), signal.SIGKILL)
        self.kills += 1
        self.killed(self.kills)
        self.note(f"killed worker {victim['id']} (pid {victim['pid']}) with SIGKILL")


def demo(
    *,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Real Kafka and MinIO instead of generator and files.")
    ] = False,
    events: Annotated[int | None, typer.Option(help="Number of orders.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Keep input, output and checkpoints here.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Use this Kafka instead of starting one.")] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="Use this S3 (credentials: PENSTOCK_S3_*).")] = None,
    json: JsonOption = False,
) -> None:
    """Run a job, kill two workers, and check every result."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    with contextlib.ExitStack() as stack:
        folder = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        progress = stack.enter_context(JobProgress(enabled=not json))
        scenario = _scenario(
            folder.resolve(), kafka=kafka, events=events, servers=(bootstrap, s3_endpoint), note=progress.note
        )
        stack.callback(scenario.close)
        result = _run(scenario, progress)
        progress.note("comparing the output with an independent computation")
        verdict = compare(scenario.expected(), scenario.output())
    figures = {
        "events": scenario.events,
        "windows": verdict.windows,
        "missing": verdict.missing,
        "duplicated": verdict.duplicated,
        "wrong": verdict.wrong,
        "restarts": result.restarts,
        "checkpoints": result.checkpoints,
        "seconds": round((clock.monotonic_ms() - started_ms) / 1000, 1),
    }
    _report(figures, exact=verdict.exact, as_json=json)


def _scenario(
    folder: Path,
    *,
    kafka: bool,
    events: int | None,
    servers: tuple[str | None, str | None],
    note: Callable[[str], None],
) -> Scenario:
    if kafka:
        from penstock.cli.demo.demo_kafka import KafkaScenario

        return KafkaScenario(folder, events or 1_000_000, note, bootstrap=servers[0], s3_endpoint=servers[1])
    from penstock.cli.demo.demo_files import FilesScenario

    return FilesScenario(folder, events or 2_000_000)


def _run(scenario: Scenario, progress: JobProgress) -> JobResult:
    from penstock.api.environment import use_executor

    scenario.prepare()
    progress.step("building the job order-totals")
    killer = Killer(scenario.events, progress.note, scenario.killed)

    begun = False

    def on_poll(handle: JobHandle, job: dict[str, Any]) -> None:
        nonlocal begun
        if job["state"] == "RUNNING" and not begun:
            begun = True
            scenario.begin()
        progress.on_poll(handle, job)
        killer.on_poll(handle, job)

    def on_started(cluster: LocalCluster, handle: JobHandle) -> None:
        progress.note(
            f"job {handle.job_id} runs on {cluster.rest_url}: a JobManager, {TASKMANAGERS} TaskManagers, their workers"
        )

    executor = EmbeddedExecutor(
        taskmanagers=TASKMANAGERS,
        on_poll=on_poll,
        on_started=on_started,
        on_step=progress.step,
        environment=scenario.environment,
    )
    with use_executor(executor, {}):
        result = scenario.build().execute("order-totals")
    if killer.kills < KILLS:
        msg = f"the job ended after {killer.kills} of {KILLS} kills: the demo is not conclusive"
        raise PenstockError(msg, hint="run it with more --events")
    return result


def _report(figures: dict[str, Any], *, exact: bool, as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        say(", ".join(f"{name} {value:,}" for name, value in figures.items()))
        say("EXACT: every window exactly once and correct" if exact else "NOT EXACT")
    if not exact:
        sys.exit(1)
