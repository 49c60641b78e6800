"""The failpoint matrix: every named failpoint x {worker, TaskManager, JobManager} killed x seeds.

By hand: `python -m tests.cluster.matrix --seeds 3 --json out.json [--points a,b] [--victims worker]`; the suite runs a
selection of the same cells (`test_failpoint_matrix.py`). A cell counts only with evidence that its point was hit.
"""

import argparse
import json
import secrets
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.harness import PATIENT_S, TERMINAL, Scene
from tests.cluster.orders import Orders
from tests.cluster.stage import Stage

from penstock_lab.servers import start_kafka, start_minio

VICTIMS = ("worker", "taskmanager", "jobmanager")
EVENTS, RATE = 12_000, 4_000


@dataclass(frozen=True)
class Point:
    """How a failpoint is reached."""

    #: What must happen first: nothing, `restart`, `rescale` (a start as another run), `in place` (a rescale) or `stop`.
    first: str = ""
    #: Seed n takes hit 1 + n * step of a process; 0: there is only one.
    step: int = 1
    orders: dict = field(default_factory=dict)
    job: dict = field(default_factory=dict)
    rate: int = RATE


POINTS = {
    "task.before_ack": Point(step=3),
    "task.after_ack": Point(step=3),
    "jobmanager.before_manifest": Point(),
    "jobmanager.after_manifest": Point(),
    "sink.before_publish": Point(),
    "sink.between_chunks": Point(job={"sink_options": "chunk_bytes=500"}),
    "sink.after_commit": Point(),
    "task.during_restore": Point(first="restart", step=0),
    "jobmanager.during_rescale": Point(first="rescale", step=0),
    # between a rescale's checkpoint and its record, and between the record and the new workers
    "jobmanager.before_rescale_record": Point(first="in place", step=0),
    "jobmanager.after_rescale_record": Point(first="in place", step=0),
    "jobmanager.during_stop": Point(first="stop", step=0),
    # small segments travel inside the acknowledgement: this one needs more keys
    "segment.upload": Point(orders={"users": 20_000, "events": 80_000}, rate=20_000),
}


@dataclass(frozen=True)
class Cell:
    point: str
    victim: str
    seed: int


@dataclass
class Record:
    """What a cell showed."""

    point: str
    victim: str
    seed: int
    #: The checkpoint the process was at, as the failpoint's evidence says; `>n`: behind the newest complete one, n.
    checkpoint: str = ""
    held_pid: int = 0
    killed_pid: int = 0
    restarts: int = 0
    processes_restarted: list = field(default_factory=list)
    resumed: bool = False
    windows: int = 0
    missing: int = 0
    duplicated: int = 0
    wrong: int = 0
    recovery_s: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def exact(self):
        return not self.error and self.windows > 0 and self.missing == self.duplicated == self.wrong == 0


def run_cell(stage, cell, **job):
    """Run one cell; raises when the point was not hit or the job did not end. `job`: further parameters of the job."""
    point = POINTS[cell.point]
    nth = 1 + cell.seed % 3 * point.step
    orders = Orders(cell.seed, **{"events": EVENTS, **point.orders})
    record = Record(cell.point, cell.victim, cell.seed)
    started = time.monotonic()
    failpoints = {cell.point: f"hold@{nth}"}
    with Scene(stage, orders, rate=point.rate, failpoints=failpoints, job={**point.job, **job}) as scene:
        scene.begin()
        _provoke(scene, point, cell)
        evidence = scene.wait_hit(cell.point)
        record.checkpoint = str(evidence.get("checkpoint", "")) or _behind(scene)
        record.held_pid = int(evidence["pid"])
        record.killed_pid, killed_at = _kill(scene, cell, evidence)
        scene.feed.go_on()
        _await_end(scene, record, killed_at)
        scene.feed.join()
        _judge(scene, record)
        if point.first == "stop" and record.missing:  # the stop went through: the rest of the input is the next run's
            record.resumed = True
            scene.submit()
            scene.wait_finished()
            _judge(scene, record)
        record.processes_restarted = list(scene.cluster.restarts)
        if not record.exact:
            record.error = f"not exact\n{scene.diagnosis()}"
    record.seconds = round(time.monotonic() - started, 1)
    return record


def _behind(scene):
    """Where a point that knows no checkpoint was hit: behind the newest one in the log."""
    done = [entry["checkpoint_id"] for entry in scene.manifests() if entry["kind"] == "checkpoint"]
    return f">{max(done, default=0)}"


def _provoke(scene, point, cell):
    if not point.first:
        return
    scene.wait_checkpoints(1 + cell.seed % 3)
    scene.look_at_workers()
    if point.first == "restart":
        scene.kill(scene.victim_pid("worker", pick=cell.seed))
    elif point.first == "stop":
        scene.ask_in_background(lambda rest: rest.stop(scene.job_id))
    elif point.first == "in place":
        scene.ask_in_background(lambda rest: rest.rescale(scene.job_id, 1, token=secrets.token_hex(8)))
    elif point.first == "rescale":
        scene.stop()
        scene.submit_in_background(job=scene.with_job(parallelism=1), token=secrets.token_hex(8))


def _kill(scene, cell, evidence):
    """Kill the victim while the process with the evidence is held; returns its pid and when."""
    if cell.victim == "worker" and not scene.victims(evidence):
        # the point lies before the first worker of a new run: the first one to come is taken
        scene.release(cell.point)
        scene.wait(scene.look_at_workers, "a worker")
    pid = scene.victim_pid(cell.victim, evidence, pick=cell.seed)
    killed_at = time.time()
    scene.kill(pid)
    scene.release(cell.point)
    return pid, killed_at


def _await_end(scene, record, killed_at):
    """Wait for the end; notes restarts, and when the first checkpoint after the kill was complete."""

    def ended():
        summary = scene.summary()
        record.restarts = max(record.restarts, int(summary.get("restarts", 0)))
        if record.recovery_s is None:
            record.recovery_s = _recovered(scene, killed_at)
        return summary.get("state") in TERMINAL

    scene.wait(ended, "the end of the job", seconds=PATIENT_S)
    scene.wait_finished()


def _recovered(scene, killed_at):
    answer = scene.ask(lambda rest: rest.checkpoints(scene.job_id), {})
    done = [
        c["latest_ack_timestamp"] / 1000 - killed_at
        for c in answer.get("history", ())
        if c["status"] == "COMPLETED" and c["trigger_timestamp"] / 1000 > killed_at
    ]
    return round(min(done), 2) if done else None


def _judge(scene, record):
    found = scene.verdict()
    record.windows, record.missing = found.windows, found.missing
    record.duplicated, record.wrong = found.duplicated, found.wrong


def run_matrix(cells, folder, report):
    """Run the cells one after another on one Kafka and one MinIO; a cell that fails is a record with an error."""
    kafka, minio = start_kafka(folder / "kafka"), start_minio(folder / "minio")
    try:
        minio.make_bucket("matrix")
        stage = Stage(kafka, minio, "matrix", f"m-{secrets.token_hex(3)}-", folder)
        for cell in cells:
            try:
                record = run_cell(stage, cell)
            except Exception as error:
                record = Record(cell.point, cell.victim, cell.seed, error=f"{type(error).__name__}: {error}")
            report(record)
    finally:
        kafka.remove()
        minio.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--points", default=",".join(POINTS))
    parser.add_argument("--victims", default=",".join(VICTIMS))
    options = parser.parse_args()
    cells = [
        Cell(point, victim, seed)
        for point in options.points.split(",")
        for victim in options.victims.split(",")
        for seed in range(options.seeds)
    ]
    records = []

    def report(record):
        records.append(record)
        mark = "exact" if record.exact else "NOT EXACT"
        print(
            f"{len(records)}/{len(cells)} {record.point} {record.victim} seed {record.seed}: {mark}, "
            f"checkpoint {record.checkpoint or '-'}, {record.windows} windows, "
            f"{record.missing}/{record.duplicated}/{record.wrong}, restarts {record.restarts}, "
            f"recovered in {record.recovery_s} s, {record.seconds} s {record.error}",
            flush=True,
        )
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(r) for r in records], indent=1), encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as folder:
        run_matrix(cells, Path(folder), report)
    exact = sum(record.exact for record in records)
    print(json.dumps({"cells": len(records), "exact": exact, "seeds": options.seeds}))
    sys.exit(0 if exact == len(records) else 1)


if __name__ == "__main__":
    main()
