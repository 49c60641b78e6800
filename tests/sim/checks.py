"""Invariants, looked at while the simulation runs; the oracle, looked at when it has ended."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.compute as pc
from tests.sim.connectors import MARKER_STRIDE
from tests.sim.election import TTL_MS
from tests.sim.kafka_log import Transaction
from tests.sim.workload import FAR, JOB, OUTPUT, USERS_OF_A_REGION

from penstock.api.building.flow import SALT
from penstock.checkpoint.ha_records import LeaderRecord
from penstock.checkpoint.leader_lease import LEASE, LeaderLease
from penstock.checkpoint.manifest_log import Manifest, decode_manifest
from penstock.checkpoint.recovery import present_manifests
from penstock.checkpoint.retention import files_of
from penstock.core.elements import Batch
from penstock.graph.job_graph import required_slots
from penstock.jobmanager.deploy.job_status import JobStatus

if TYPE_CHECKING:
    from tests.sim.worker import TaskManager, Worker
    from tests.sim.world import World

    from penstock.graph.job_graph import JobGraph
    from penstock.jobmanager.deploy.job_status import StatusMachine
    from penstock.jobmanager.master.job_master import JobMaster
    from penstock.network.input_gate import InputGate
    from penstock.rpc import messages as msg
    from penstock.task.drive.subtask import Subtask

_MANIFESTS = f"{JOB}/manifests/"
#: The shortest silence of a leader, in which it was paused or its path broken.
_SILENCE_MS = TTL_MS / 12


class Checks:
    """All of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sealed = 0
        #: Generation of the lease, the last that was released, and the last writes of the lease.
        self._lease = self._released = 0
        self._renewals: deque[float] = deque(maxlen=50)
        #: Owner of each generation; owner and time of the newest.
        self._leaders: dict[int, str] = {}
        self._newest = "", 0.0
        #: Generations that have answered a standby; the last one that a standby wants to replace before its lease ends.
        self._answered: dict[str, set[int]] = {}
        #: The first question without an answer of a standby to a leader.
        self._asked: dict[tuple[str, str], float] = {}
        self._early = 0
        self._last: dict[str, int] = {}
        self._ended: set[str] = set()
        #: The newest attempt of each vertex that has started in a worker.
        self._attempts: dict[str, int] = {}
        #: Generation that has triggered a checkpoint of a run.
        self._triggered: dict[tuple[str, int], int] = {}
        #: (marker group, checkpoint id) of all output some manifest of a checkpoint names.
        self._named: set[tuple[str, int]] = set()
        #: All entries of the log; the files that the newest checkpoint names which a restart may use.
        self._log: list[Manifest] = []
        self.newest: set[str] = set()
        #: Kind of barrier of the newest checkpoint; regions that have gone back to one that was not aligned.
        self._barrier = ""
        self._repeating: set[int] = set()
        #: Key of an entry in the store -> its nonce, and the files it names.
        self._entries: dict[str, tuple[str, set[str]]] = {}

    # --- the election -------------------------------------------------------------------------------------------------

    def lapsed(self, standby: str, lease: LeaderLease, asked_ms: float) -> None:
        """A standby wants the lead of a leader of which it knows nothing but the lease and its answers to probes."""
        fail = self._world.scheduler.fail
        newest_ms = max((at_ms for at_ms in self._renewals if at_ms <= asked_ms), default=0.0)
        if asked_ms - newest_ms >= TTL_MS:
            return
        name = f"generation {lease.generation} was"
        if asked_ms - newest_ms < TTL_MS / 3 or lease.generation not in self._answered.get(standby, ()):
            fail(f"{name} renewed {asked_ms - newest_ms:.0f} ms before a standby asked: it leads")
        # a lost question is not repeated before the lifetime ends, even if its path is repaired soon
        leader = lease.jobmanager_id
        since_ms = min(asked_ms - _SILENCE_MS, self._asked.get((standby, leader), asked_ms))
        gone = self._world.scheduler.is_dead(leader) or self._world.broke(leader, since_ms, asked_ms)
        if not gone and not self._world.broke((standby, leader), since_ms, asked_ms):
            fail(f"{name} running and reachable while {standby} waited for an answer")
        self._early = lease.generation
        self._world.swarm.seen("replaced-before-its-lease-ended")

    def asked(self, standby: str, leader: str) -> None:
        """A standby probes a leader."""
        self._asked.setdefault((standby, leader), self._world.clock.elapsed_ms)

    def answered(self, standby: str, leader: str, generation: int) -> None:
        """A leader has answered a standby's probe."""
        self._asked.pop((standby, leader), None)
        self._answered.setdefault(standby, set()).add(generation)

    def leads(self, owner: str, generation: int) -> None:
        """A standby leads."""
        self._world.swarm.seen("leader-elected")
        self._world.scheduler.note(f"{owner} leads, generation {generation}")
        if self._leaders.setdefault(generation, owner) != owner:
            self._world.scheduler.fail(f"{owner} and {self._leaders[generation]} lead with generation {generation}")

    @property
    def newest_leader(self) -> str:
        """The owner that has taken the newest generation."""
        return self._newest[0]

    @property
    def newest_generation(self) -> int:
        """The newest generation that leads or has led."""
        return max(self._leaders, default=0)

    def _taken(self, generation: int, owner: str) -> None:
        """A generation was taken: its predecessor had the time of a lease, unless it has ended or hands over."""
        now_ms, (before, since_ms) = self._world.clock.elapsed_ms, self._newest
        ended = not before or self._released == generation - 1 or self._world.exit_is_known(before)
        least_ms = TTL_MS / 3 if self._early == generation - 1 else TTL_MS
        if not ended and now_ms - since_ms < least_ms:
            self._world.scheduler.fail(
                f"{owner} takes generation {generation} {now_ms - since_ms:.0f} ms after {before}"
            )
        self._newest = owner, now_ms

    # --- the store ----------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """An object was written."""
        if key == LEASE:
            lease = msgspec.json.decode(data, type=LeaderLease)
            if lease.generation < self._lease:
                self._world.scheduler.fail(f"the lease went back from generation {self._lease} to {lease.generation}")
            self._lease = lease.generation
            if lease.released:
                self._released = lease.generation
            self._renewals.append(self._world.clock.elapsed_ms)
        elif key.startswith("leader/"):
            record = msgspec.json.decode(data, type=LeaderRecord)
            self._taken(record.generation, record.jobmanager_id)
        if not key.startswith(_MANIFESTS):
            return
        manifest = decode_manifest(data)
        nonce, _ = self._entries.get(key, ("", set()))
        if not nonce:
            self._appended(manifest)
        elif nonce != manifest.nonce or files_of(manifest):
            self._world.scheduler.fail(f"entry {manifest.sequence} was written again, and not without its files alone")
        else:
            self._world.swarm.seen("entry-emptied")
        self._entries[key] = manifest.nonce, files_of(manifest)

    def deleted(self, key: str) -> None:
        """An object was deleted."""
        name = key.removeprefix(f"{JOB}/")
        self._entries.pop(key, None)
        naming = next((entry for entry, (_, files) in self._entries.items() if name in files), None)
        if naming is not None:
            self._world.scheduler.fail(f"{name} was deleted, {naming} names it")
        if name in self.newest:
            self._world.scheduler.fail(f"{name} was deleted, the newest checkpoint names it")
        if not key.startswith(_MANIFESTS):
            self._world.swarm.seen("swept-file")

    def _appended(self, manifest: Manifest) -> None:
        fail, swarm = self._world.scheduler.fail, self._world.swarm
        owed = " ".join(c.id.partition("/")[2] for c in manifest.pending)
        what = f"{manifest.kind} {manifest.checkpoint_id or ''} {manifest.barrier} {manifest.run_id} {manifest.note}"
        self._world.scheduler.note(
            f"entry {manifest.sequence}: {what}, generation {manifest.generation}, owed: {owed or '-'}"
        )
        if manifest.generation < self._sealed:
            fail(f"generation {manifest.generation} appended {manifest.sequence}, {self._sealed} had sealed before")
        if manifest.run_id in self._ended and manifest.kind in ("checkpoint", "savepoint"):
            fail(f"{manifest.run_id} has ended and goes on")
        if manifest.kind == "end":
            self._ended.add(manifest.run_id)
        if manifest.kind == "seal":
            self._sealed = manifest.generation
        if manifest.checkpoint_id is not None:
            if manifest.checkpoint_id <= self._last.get(manifest.run_id, 0):
                fail(f"checkpoint {manifest.checkpoint_id} of {manifest.run_id} is not newer than the one before")
            self._last[manifest.run_id] = manifest.checkpoint_id
        if manifest.kind == "checkpoint":
            swarm.seen("checkpoint-completed")
            self._barrier = manifest.barrier
            swarm.seen("rows-overtaken", sum(len(part.in_flight) for part in manifest.subtasks))
            self._named |= {(c.marker_group, c.checkpoint_id) for c in manifest.pending}
        self._log.append(manifest)
        if manifest.kind in ("checkpoint", "seal"):  # a seal may end the trial of a version, with its checkpoints
            counting = [m for m in present_manifests(self._log, manifest.run_id) if m.kind == "checkpoint"]
            self.newest = files_of(counting[-1]) if counting else set()

    # --- the adaptive scheduler ---------------------------------------------------------------------------------------

    def follows_slots(self, before: JobGraph, after: JobGraph, slots: int, status: StatusMachine) -> None:
        """A job changes its parallelism itself: not up before its pause, and not down as long as it has its slots."""
        swarm, fail = self._world.swarm, self._world.scheduler.fail
        needed, wanted = required_slots(before), required_slots(after)
        ran_ms = self._world.clock.now_ms() - status.entered_ms.get(JobStatus.RUNNING, 0)
        if wanted < needed <= slots:
            fail(f"the job goes from {needed} to {wanted} slots, and {slots} are its own or free")
        if wanted > needed and ran_ms < before.settings.adaptive_scheduler.scaling_interval_ms:
            fail(f"the job goes from {needed} to {wanted} slots {ran_ms} ms after its start")
        swarm.seen("slots-followed-down" if wanted < needed else "slots-followed-up")

    # --- the broker ---------------------------------------------------------------------------------------------------

    def committing(self, transaction: Transaction) -> None:
        """A transaction is about to be committed."""
        for group, marker in transaction.offsets.items():
            chunk = f"{marker // MARKER_STRIDE}.{marker % MARKER_STRIDE}"
            self._world.scheduler.note(f"commit {group} {chunk}: {transaction.records} rows")
            if (group, marker // MARKER_STRIDE) not in self._named:
                self._world.scheduler.fail(
                    f"{group} publishes checkpoint {marker // MARKER_STRIDE}, which no manifest names"
                )

    # --- the tasks ----------------------------------------------------------------------------------------------------

    def deployed(self, killed: Mapping[str, Worker | None]) -> None:
        """A leader lets workers act; `killed` are its workers that have not exited, None if they have stopped."""
        running = [name for name, worker in killed.items() if worker is not None and worker.runtime.subtasks]
        if running:
            self._world.scheduler.fail(f"a deployment begins while the tasks of {running[0]} run, which was killed")
        self._world.swarm.seen("deployed-before-exit", int(bool(killed)))

    def watch(self, subtask: Subtask) -> None:
        """Look at everything the subtask takes from its gate, and at what it was restored from."""
        started = subtask.deployment.execution
        self._attempts[started.vertex_id] = max(started.attempt, self._attempts.get(started.vertex_id, 0))
        if not self._world.plan.aligned and subtask.deployment.restored_checkpoint is not None:
            self._repeating |= {_region(subtask)} if self._barrier not in ("stop", "drain") else set()
        gate: Any = subtask._gate
        if gate is None:
            return
        self._world.swarm.seen("overtaken-rows-restored", len(subtask.deployment.in_flight))
        poll, alignment, fail = gate.poll, subtask._barriers.alignment, self._world.scheduler.fail
        swarm = self._world.swarm

        def watched() -> Any:
            taken = poll()
            if taken is not None and isinstance(taken[1], Batch):
                if taken[0] in alignment.blocked:
                    fail(f"a row passed on channel {taken[0]} behind its barrier")
                swarm.seen("rows-after-barrier", taken[0] in alignment.arrived)
                swarm.seen("rows-spread", _spread_rows(taken[1]))
            return taken

        gate.poll = watched

    def stepped(self, subtask: Subtask) -> None:
        """Look at its credits, and that it has not called a row late: none of the input is.

        After a restore without alignment the watermark may be ahead of rows that are processed again.
        """
        repeats = bool(self._repeating) and _region(subtask) in self._repeating
        for link in subtask._chain.links:
            if link.metrics.late_records_dropped and not repeats:
                self._world.scheduler.fail(f"{subtask.deployment.execution} dropped a row as late")
        for output in subtask._outputs:
            for channel in output.channels:
                if channel._credit.balance < 0:
                    self._world.scheduler.fail("negative credit at a sender")
        if subtask._gate is not None:
            self._check_gate(subtask._gate)

    def _check_gate(self, gate: InputGate) -> None:
        credit = gate._credit
        if min(credit.outstanding, default=0) < 0 or min(credit.queued, default=0) < 0:
            self._world.scheduler.fail("negative credit at a gate")
        if credit.floating_free + sum(credit.floating_held) != credit.floating_total:
            self._world.scheduler.fail("floating credit leaked")

    def shared(self, manager: TaskManager) -> None:
        """The gates of a worker have got another share: with the others' they stay within the network memory."""
        pool = manager.network
        held = sum(max(0, worker.network_bytes - pool.guaranteed_bytes) for worker in manager.workers.values())
        if held > pool.shared_bytes:
            self._world.scheduler.fail(f"{manager.name}: workers use {held} of {pool.shared_bytes} shared bytes")

    # --- a change of the leader -------------------------------------------------------------------------------------

    def adopted(self, graph: JobGraph, told: Mapping[str, msg.TasksReported]) -> None:
        """A leader goes on with workers; `told` is what they have said, by worker."""
        subtasks = {(vertex.id, subtask) for vertex in graph.vertices for subtask in range(vertex.parallelism)}
        running = Counter((task.vertex_id, task.subtask) for answer in told.values() for task in answer.tasks)
        if missing := sorted(subtasks - set(running)):
            self._world.scheduler.fail(f"adopted without {len(missing)} of {len(subtasks)} subtasks")
        for answer in told.values():
            earlier = [t for t in answer.tasks if answer.attempt != self._attempts.get(t.vertex_id)]
            if earlier:
                newest = self._attempts.get(earlier[0].vertex_id)
                self._world.scheduler.fail(f"attempt {answer.attempt} is adopted, attempt {newest} has started")

    def acknowledged(self, master: JobMaster, checkpoint_id: int) -> None:
        """A checkpoint is complete: each present execution has its part in it, and no other."""
        record = master.checkpointing.history._find(checkpoint_id)
        if record is None or master.deployment is None:
            return
        present = {execution.id for execution in master.deployment.executions.values()}
        if set(record.acks) != present:
            late = ", ".join(str(execution) for execution in sorted(set(record.acks) - present))
            self._world.scheduler.fail(f"checkpoint {checkpoint_id} lacks present executions, or has [{late}] besides")

    def triggered(self, run_id: str, checkpoint_id: int, generation: int) -> None:
        """A leader triggers a checkpoint."""
        if self._triggered.setdefault((run_id, checkpoint_id), generation) != generation:
            self._world.scheduler.fail(f"two leaders give id {checkpoint_id} to a checkpoint of {run_id}")

    def obeyed_earlier(self, worker_id: str, command: str) -> None:
        """A command of an earlier leader had an effect."""
        self._world.scheduler.fail(f"{worker_id} obeys {command} of an earlier leader")

    # --- the end ------------------------------------------------------------------------------------------------------

    def output(self) -> int:
        """Compare the read-committed output with the oracle; returns its rows."""
        world = self._world
        expected, found = world.plan.expected(), Counter(world.kafka.read_committed(OUTPUT))
        if any(number >= FAR // 2 for row in found for number in row[4:]):
            world.scheduler.fail("output has rows of a version that was rolled back")
        if expected == found or (self._repeating and self._at_least(expected, found)):
            world.swarm.seen("rows-counted-again", int(expected != found))
            return sum(found.values())
        wanted, got = {row[:3] for row in expected}, Counter(row[:3] for row in found.elements())
        missing = sorted(wanted - set(got))
        doubled = sorted(window for window, times in got.items() if times > 1)
        wrong = sorted(row for row in found if row[:3] in wanted and row not in expected)
        strange = sorted(row for row in found if row[:3] not in wanted)
        world.scheduler.fail(
            f"output differs: {len(missing)} missing {missing[:3]}, {len(doubled)} duplicated {doubled[:3]}, "
            f"{len(wrong)} wrong {wrong[:3]}, {len(strange)} unasked for {strange[:3]}"
        )
        raise AssertionError

    def _at_least(self, expected: Counter[tuple[int, ...]], found: Counter[tuple[int, ...]]) -> bool:
        """Whether each window of a repeating region has come once with at least its rows, and no other window.

        After the end of its input it may come again with a part of them: that watermark is not restored. The output of
        other regions must be exact.
        """
        exact = {row: count for row, count in expected.items() if row[0] // USERS_OF_A_REGION not in self._repeating}
        if exact != {row: n for row, n in found.items() if row[0] // USERS_OF_A_REGION not in self._repeating}:
            return False
        most: dict[tuple[int, ...], int] = {}
        for row in found:
            most[row[:3]] = max(row[3], most.get(row[:3], 0))
        wanted = {row[:3]: row[3] for row in expected}
        return most.keys() == wanted.keys() and all(most[window] >= rows for window, rows in wanted.items())


def _region(subtask: Subtask) -> int:
    """The number of its region, which is the end of its uids."""
    number = subtask.deployment.operators[0].uid.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _spread_rows(batch: Batch) -> int:
    """The number of rows of hot keys that are not in the first part of their key."""
    if SALT not in batch.data.schema.names:
        return 0
    return int(pc.sum(pc.not_equal(batch.data.column(SALT), 0)).as_py() or 0)
