"""Faults planted into the engine, each of which some seed must catch: they show that the simulation can see.

A mutant replaces one rule of the real classes by what an honest first version might have had; where it helps, the
faults and the plan are directed at it. Used by `test_mutants.py`.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.sim.faults import COPY_DAMAGED, Swarm
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import TINY

from penstock.checkpoint import local_copies
from penstock.checkpoint.alignment import Alignment, Snapshot
from penstock.checkpoint.coordinator import AppendCheckpoint, CheckpointCoordinator
from penstock.checkpoint.manifest_log import ManifestLog
from penstock.checkpoint.retention import files_of
from penstock.connector.sink import SinkContext
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.permits import CommitPermit
from penstock.jobmanager.checkpoints.checkpointing import Checkpointing, checkpoint_entry
from penstock.jobmanager.checkpoints.savepoint_copy import SavepointCopy
from penstock.jobmanager.deploy import job_log as recover
from penstock.jobmanager.master import job_master
from penstock.jobmanager.messages.commands import DeleteEntries
from penstock.jobmanager.messages.events import CopyTarget
from penstock.kernels.aggregates import pages
from penstock.network.credit import GateCredit
from penstock.network.input_gate import InputGate
from penstock.network.subpartition import Subpartition
from penstock.operators.lateness import RangeWatermarks
from penstock.operators.sinks.sink_operator import PendingOutput, SinkOperator
from penstock.operators.sources.source_operator import SourceOperator
from penstock.state.cells.pane_memory import PaneMemory
from penstock.state.log.arrival import PartialRestore
from penstock.state.log.segment_log import LogView, SegmentLog
from penstock.state.memory.limits import PRODUCTION
from penstock.state.tables.pane_table import PaneTable
from penstock.task.checkpoint import restore, savepoint_copy
from penstock.task.drive import subtask
from penstock.task.drive.waiting_rows import WaitingRows

Patch = pytest.MonkeyPatch
#: No world of a mutant without its fault takes half of it.
_MAX_STEPS = 10_000


@dataclass(frozen=True)
class Mutant:
    """One planted fault and where to look for it."""

    name: str
    plant: Callable[[Patch], None]
    points: dict[str, float] = field(default_factory=dict)
    strikes: dict[str, float] = field(default_factory=dict)
    #: Fields of `Plan` that are not drawn, and settings of the job.
    plan: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    regions: int = 1
    #: What the job computes.
    kind: type[Plan] = Plan
    #: One of the seeds 1 to `seeds` must catch it. The first tried is `likely`, which caught it before.
    seeds: int = 25
    likely: int = 1
    every_ms: float = 200.0
    faults_for_ms: float = 2000.0

    @property
    def tried(self) -> list[int]:
        """The seeds in the order in which they are tried."""
        return [self.likely, *(seed for seed in range(1, self.seeds + 1) if seed != self.likely)]

    def world(self, seed: int) -> World:
        """The directed world of a seed."""
        plan = replace(self.kind.drawn(random.Random(f"plan {seed}")), **self.plan)
        plan.split(self.regions, random.Random(f"regions {seed}"))
        plan.settings.update({"checkpoint_tolerated_failures": 100, **self.settings})
        swarm = Swarm(random.Random(f"faults {seed}"), dict(self.points), dict(self.strikes), every_ms=self.every_ms)
        return World(seed, plan, swarm, faults_for_ms=self.faults_for_ms, max_steps=_MAX_STEPS)


_CRASHES = {"worker-killed": 3.0, "taskmanager-killed": 1.0}
_DEATHS = {"worker-killed": 1.0, "jobmanager-killed": 1.0}
_SLOW = {"input_ms": 1500.0}
_RESCALE = [Phase(3, "cancel"), Phase(1, "stop"), Phase(2, "finish")]


def _segments_forgotten(patch: Patch) -> None:
    freeze = PaneTable.freeze

    def forgetful(self: PaneTable) -> Any:
        log = self.source.log
        log.entries = [entry for entry in log.entries if entry.segment is not None]
        self._waiting = []
        return freeze(self)

    patch.setattr(PaneTable, "freeze", forgetful)


def _hidden_without_change(patch: Patch) -> None:
    """A freeze of a small table hides the rows that were saved, and saves none as none has changed since."""
    patch.setattr(PaneMemory, "has_changed", True)


def _names_stay(patch: Patch) -> None:
    """Entries that retention keeps for their place are not written again without their files."""
    delete = ManifestLog.delete
    patch.setattr(ManifestLog, "delete", lambda self, sequences, _emptied=(): delete(self, sequences))


def _delete_on_abort(patch: Patch) -> None:
    abort = Checkpointing._abort

    def tidy(self: Checkpointing, pending: Any, reason: str, now_ms: int) -> Any:
        draft = checkpoint_entry(self._running(), pending, (), (CopyTarget(), now_ms))
        return [*abort(self, pending, reason, now_ms), DeleteEntries((), tuple(sorted(files_of(draft))))]

    patch.setattr(Checkpointing, "_abort", tidy)


def _tombstone_without_scope(patch: Patch) -> None:
    add = SegmentLog.add_tombstone
    patch.setattr(SegmentLog, "add_tombstone", lambda self, hidden, low, _high: add(self, hidden, low, MAX_TIMESTAMP))


def _publish_before_manifest(patch: Patch) -> None:
    written = SinkOperator.staged_written

    def eager(self: SinkOperator, committable: Any) -> None:
        context = self._context
        self._permit = CommitPermit(context.job_id, context.run_id, context.generation, committable.checkpoint_id, 0)
        written(self, committable)

    patch.setattr(SinkOperator, "staged_written", eager)


def _marker_across_runs(patch: Patch) -> None:
    plan = recover.plan_recovery
    patch.setattr(
        SinkContext, "transactional_id", property(lambda self: f"{self.job_name}.{self.uid}.run.{self.subtask}")
    )

    def ids_of_the_run(entries: Any, run_id: str, **options: Any) -> Any:
        decided = plan(entries, run_id, **options)
        ids = [e.manifest.checkpoint_id or 0 for e in entries if e.manifest.run_id == run_id]
        return replace(decided, next_checkpoint_id=1 + max(ids, default=0))

    patch.setattr(recover, "plan_recovery", ids_of_the_run)


def _watermark_overtakes(patch: Patch) -> None:
    def at_once(self: Subpartition, event: Any, now_ms: float) -> None:
        self._enqueue([(event, 0)])

    patch.setattr(Subpartition, "add_event", at_once)


def _falls_back(patch: Patch) -> None:
    plan = recover.plan_recovery

    def older(entries: Any, run_id: str, **options: Any) -> Any:
        checkpoints = [e for e in entries if e.manifest.kind == "checkpoint"]
        return plan([e for e in entries if e not in checkpoints[1:][-1:]], run_id, **options)

    patch.setattr(recover, "plan_recovery", older)


def _old_leader_accepted(patch: Patch) -> None:
    def stubborn(self: ManifestLog, entry: Any, *, past_older: bool) -> Any:
        nonce = self._rand.token()
        while True:
            self._last += 1
            wanted = msgspec.structs.replace(entry, sequence=self._last, nonce=nonce, generation=self._generation)
            if self._put(wanted):
                return self._entry(wanted)

    patch.setattr(ManifestLog, "_append", stubborn)
    patch.setattr(ManifestLog, "_refuse_newer", lambda self, present: None)


def _credit_leaks(patch: Patch) -> None:
    consumed = GateCredit.on_consumed

    def leaky(self: GateCredit, channel: int, cost: int) -> Any:
        kept = self.queued[channel] == cost and cost > 1
        granted = consumed(self, channel, cost)
        return [] if kept else granted

    patch.setattr(GateCredit, "on_consumed", leaky)


def _watermark_not_restored(patch: Patch) -> None:
    patch.setattr(RangeWatermarks, "restored", classmethod(lambda cls, owned, _items: cls(owned, MIN_TIMESTAMP, [])))
    patch.setattr(restore, "restored_watermark", lambda _deployment: MIN_TIMESTAMP)


def _only_last_segment(patch: Patch) -> None:
    named = LogView.named

    def last(self: LogView) -> Any:
        segments, tombstones = named(self)
        return segments[-1:], tombstones

    patch.setattr(LogView, "named", last)


def _barrier_not_aligned(patch: Patch) -> None:
    """The first barrier is enough: rows before the others are not in the snapshot, and their sources are after them."""

    def first_counts(self: Alignment, _channel: int, barrier: Any) -> Any:
        if barrier.checkpoint_id <= self._newest:
            return []
        self._newest = barrier.checkpoint_id
        return [Snapshot(barrier)]

    patch.setattr(Alignment, "on_barrier", first_counts)


def _loss_behind_end_ignored(patch: Patch) -> None:
    """As before the simulation found it: behind the end of input a lost connection was thought to lose nothing."""
    fail = InputGate.fail

    def deaf(self, why):
        return not all(self.finished(channel) for channel in range(self.channel_count)) and fail(self, why)

    patch.setattr(InputGate, "fail", deaf)


def _block_ignored(patch: Patch) -> None:
    patch.setattr(InputGate, "block", lambda self, channel: None)


def _pending_dropped(patch: Patch) -> None:
    plan = recover.plan_recovery
    patch.setattr(recover, "plan_recovery", lambda *a, **options: replace(plan(*a, **options), pending=()))


def _output_not_carried_on(patch: Patch) -> None:
    snapshot, owed = PendingOutput.to_snapshot, Checkpointing._uncommitted

    def fresh(self: Checkpointing, pending: Any) -> Any:
        known, self.pending = self.pending, {}
        named = owed(self, pending)
        self.pending = known
        return named

    patch.setattr(PendingOutput, "to_snapshot", lambda self: ((), snapshot(self)[1]))
    patch.setattr(Checkpointing, "_uncommitted", fresh)


def _split_offset_of_later(patch: Patch) -> None:
    """The offsets are read when the barrier has been sent and another poll was made."""
    snapshot = SourceOperator.snapshot

    def late(self: SourceOperator, barrier: Any, out: Any) -> Any:
        taken = snapshot(self, barrier, out)
        if self._reader is not None and not self._suspended:
            self.poll(out, backpressured=False)
        return taken

    patch.setattr(SourceOperator, "snapshot", late)


def _end_forgets_unknown(patch: Patch) -> None:
    """As before the simulation found it: the end entry's list of owed output was taken for complete."""
    plan = recover.plan_recovery

    def trusting(entries: Any, run_id: str, **options: Any) -> Any:
        decided = plan(entries, run_id, **options)
        newest = decided.restored
        ends = [e.manifest for e in entries if newest is not None and e.manifest.sequence > newest.sequence]
        ends = [manifest for manifest in ends if manifest.kind == "end"]
        if not ends:
            return decided
        left = {c.id for c in ends[-1].pending}
        return replace(decided, pending=tuple(c for c in decided.pending if c.id in left))

    patch.setattr(recover, "plan_recovery", trusting)


def _floor_of_the_others(patch: Patch) -> None:
    """As before the simulation found it: a source subtask without a watermark had no part in the floor."""
    snapshot = SourceOperator.snapshot

    def silent(self: SourceOperator, barrier: Any, out: Any) -> Any:
        taken = snapshot(self, barrier, out)
        kept = tuple(s for s in taken.operator if s.mode != "union" or s.items != (MIN_TIMESTAMP,))
        return replace(taken, operator=kept)

    patch.setattr(SourceOperator, "snapshot", silent)


def _change_of_a_leaving_key_lost(patch: Patch) -> None:
    """A key that leaves memory takes its changes to the local disk, and no segment gets them."""
    evict_keys = PaneTable.evict_keys

    def forgetful(self: PaneTable, *leaving: Any) -> None:
        self._hot.memory._meta[:, pages.DIRTY] = 0
        evict_keys(self, *leaving)

    patch.setattr(PaneTable, "evict_keys", forgetful)


def _row_in_flight_lost(patch: Patch) -> None:
    """Rows that arrive between the snapshot and the barrier of their channel are processed, and in no checkpoint."""
    overtake = InputGate.overtake

    def at_once(self: InputGate, rows: Any, passed: Any, unfed: Any) -> None:
        overtake(self, rows, passed, unfed)
        kept = list(rows.received)
        rows.received = type("Deaf", (list,), {"append": lambda _self, _rows: None})(kept)

    patch.setattr(InputGate, "overtake", at_once)


def _overtaken_on_one_side(patch: Patch) -> None:
    """The barrier overtakes the queue of its sender, whose rows are not taken into the checkpoint."""
    overtake = Subpartition.overtake

    def silent(self: Subpartition, barrier: Any) -> Any:
        overtake(self, barrier)
        return []

    patch.setattr(Subpartition, "overtake", silent)


def _waiting_row_lost(patch: Patch) -> None:
    """A barrier passes the rows that wait for their state, and the checkpoint has none of them."""
    patch.setattr(WaitingRows, "batches", property(lambda _self: ()))


def _no_wait_for_a_part(patch: Patch) -> None:
    """Rows are processed before the state of their key is loaded."""
    patch.setattr(PartialRestore, "unfetched", lambda _self, hashes: np.zeros(len(hashes), np.bool_))


def _waiting_row_taken_twice(patch: Patch) -> None:
    """The waiting rows are collected with the other rows of the input, and again with the snapshot."""
    overtake = InputGate.overtake

    def again(self: InputGate, rows: Any, passed: Any, unfed: Any) -> None:
        overtake(self, rows, passed, unfed)
        self.collect(rows, unfed)

    patch.setattr(InputGate, "overtake", again)


def _row_restored_twice(patch: Patch) -> None:
    """After a rescale each subtask restores whole files, also the rows of other subtasks."""
    rows = restore.restored_rows

    def unsplit(deployment: Any, read_file: Any) -> Any:
        whole = tuple(msgspec.structs.replace(part, key=()) for part in deployment.in_flight)
        return rows(msgspec.structs.replace(deployment, in_flight=whole), read_file)

    patch.setattr(subtask, "restored_rows", unsplit)


def _watermark_overtakes_restored(patch: Patch) -> None:
    """Restored rows wait until nothing else does."""
    poll = InputGate.poll

    def last(self: InputGate) -> Any:
        restored, self._restored = self._restored, deque()
        taken = poll(self)
        self._restored = restored
        return self._take_restored() if taken is None and restored else taken

    patch.setattr(InputGate, "poll", last)


def _later_ack_counts(patch: Patch) -> None:
    """An acknowledgement counts for the oldest checkpoint under way, also if it is of a newer one."""
    ack = CheckpointCoordinator.ack

    def for_oldest(self: CheckpointCoordinator, checkpoint_id: int, execution: Any, given: Any) -> Any:
        return ack(self, min(checkpoint_id, self.oldest_id), execution, given)

    patch.setattr(CheckpointCoordinator, "ack", for_oldest)


def _older_appended_later(patch: Patch) -> None:
    """Each checkpoint is appended when it is complete, also after a newer one."""

    def at_once(self: CheckpointCoordinator) -> Any:
        ready = [p for p in self._pending.values() if p.complete and not p.appending]
        for pending in ready:
            pending.appending = True
        return [AppendCheckpoint(pending) for pending in ready]

    patch.setattr(CheckpointCoordinator, "_append_next", at_once)


def _subsumed_output_dropped(patch: Patch) -> None:
    """The output of a checkpoint that a later one subsumes is dropped, as if it had failed for good."""
    abort, owed, aborted = Checkpointing._abort, Checkpointing._uncommitted, SinkOperator.notify_aborted
    subsumed: set[tuple[str, int]] = set()

    def noting(self: Checkpointing, pending: Any, reason: str, now_ms: int) -> Any:
        if reason.startswith("subsumed"):
            subsumed.add((self._running().ids.run_id, pending.checkpoint_id))
        return abort(self, pending, reason, now_ms)

    def without(self: Checkpointing, pending: Any) -> Any:
        return tuple(c for c in owed(self, pending) if (c.run_id, c.checkpoint_id) not in subsumed)

    def dropping(self: SinkOperator, checkpoint_id: int) -> None:
        entries = self._pending._entries
        if (self._context.run_id, checkpoint_id) in subsumed:
            self._pending.published([key for key, e in entries.items() if e.committable.checkpoint_id == checkpoint_id])
        aborted(self, checkpoint_id)

    patch.setattr(Checkpointing, "_abort", noting)
    patch.setattr(Checkpointing, "_uncommitted", without)
    patch.setattr(SinkOperator, "notify_aborted", dropping)


def _sealed_early(patch: Patch) -> None:
    """The manifest of a savepoint is written after its first part."""
    written = SavepointCopy.part_written

    def early(self: SavepointCopy, message: Any) -> Any:
        first = not self._written
        return written(self, message) or ([self._seal()] if first else [])

    patch.setattr(SavepointCopy, "part_written", early)


def _parts_share_names(patch: Patch) -> None:
    """Each worker numbers the files of its part from 0, as one worker that writes all does."""
    put = savepoint_copy.SavepointWriter._put

    def numbered(self: Any, key: str, data: bytes) -> Any:
        return put(self, re.sub(r"part-\d+-", "part-", key), data)

    patch.setattr(savepoint_copy.SavepointWriter, "_put", numbered)


def _native_by_number(patch: Patch) -> None:
    """The files of a native savepoint are named after the position in their log, which is that of one subtask."""
    native = savepoint_copy.SavepointWriter.native_state

    def numbered(self: Any, state: Any) -> Any:
        places = {segment.file: segment.position for segment in state.segments}
        self._segment_file = lambda folder, ref: self._put(f"{folder}/part-{places[ref]}.parquet", self._read(ref))
        return native(self, state)

    patch.setattr(savepoint_copy.SavepointWriter, "native_state", numbered)


_SAVED = {"phases": [Phase(2, "stop"), Phase(2, "finish", from_savepoint=True)]}
_STAGES = [Phase(1, "cancel"), Phase(2, "cancel"), Phase(1, "cancel"), Phase(1, "finish")]
_LONG = {"input_ms": 3000.0, "size_ms": 400, "slide_ms": 400, "inline_bytes": 0, "phases": [Phase(2, "finish")]}
_HASTY = {"checkpoint_interval_ms": 40, "checkpoint_timeout_ms": 60}
_BUSY = {"input_ms": 150.0}


def _end_ignored(patch: Patch) -> None:
    """As before the simulation found it: the next leader did not look whether its run had ended."""
    patch.setattr(job_master, "ended_as", lambda _entries, _run_id: "")


#: Rows wait in every queue, and barriers overtake them.
_FULL = {**_SLOW, "input_ms": 20.0, "slow_ms": 8.0}
OVERTAKING = {
    "unaligned_checkpoints": True,
    "aligned_checkpoint_timeout_ms": 0,
    "buffer_size_bytes": 256,
    "buffer_timeout_ms": 0,
    "exclusive_buffers": 1,
    "floating_buffers": 0,
    "checkpoint_interval_ms": 40,
    "sink_pending_max_epochs": 1000,
}

#: Rows wait for their state for longer than a checkpoint takes.
_FETCHING = {**_SLOW, "fetch_ms": 60.0, "limits": TINY}
_REMOTE = {"state_backend": "remote"}

#: Checkpoints overlap, and acknowledgements of the older ones come last.
_OVERLAPPING = {"checkpoint_interval_ms": 20, "max_concurrent_checkpoints": 4, "checkpoint_timeout_ms": 800}
_LATE_ACKS = {"ack-late": 0.3}


def _copies_not_compared(patch: Patch) -> None:
    """Any copy with the right name is read, also one of an older checkpoint."""
    part = local_copies._part
    patch.setattr(local_copies, "_part", lambda path, ref: part(path, msgspec.structs.replace(ref, checksum="")))


def _found_forgotten(patch: Patch) -> None:
    """Retention does not know a checkpoint that is in the log though its append failed."""
    appended = Checkpointing.appended
    forgetful = lambda self, entry, now_ms: appended(self, msgspec.structs.replace(entry, found=()), now_ms)
    patch.setattr(Checkpointing, "appended", forgetful)


MUTANTS = (
    Mutant(
        "segments of a failed upload forgotten",
        _segments_forgotten,
        {"upload-delayed": 0.3, "put-fails-before": 0.1},
        {"worker-killed": 1.0},
        _LONG,
        _HASTY,
        seeds=40,
        likely=2,
        every_ms=500,
        faults_for_ms=4000,
    ),
    Mutant("delete on abort", _delete_on_abort, {"upload-delayed": 0.4}, _DEATHS, _SLOW, _HASTY, likely=9),
    Mutant("tombstone without scope", _tombstone_without_scope, {}, _CRASHES, _SLOW, likely=2),
    Mutant("an entry before a seal names removed files", _names_stay, {}, {"jobmanager-killed": 1.0}, _SLOW),
    Mutant("publish before the manifest", _publish_before_manifest, {"upload-delayed": 0.3}, _CRASHES, likely=2),
    Mutant("marker compared across runs", _marker_across_runs, {}, {}, {**_SLOW, "phases": _RESCALE}),
    Mutant("watermark overtakes rows", _watermark_overtakes, {}, {}, {}, {"buffer_timeout_ms": 30}),
    Mutant("fall-back below published output", _falls_back, {}, _CRASHES, _SLOW),
    Mutant(
        "old leader's manifest accepted", _old_leader_accepted, {"pause-leader-at-manifest": 0.2}, {}, _SLOW, likely=4
    ),
    Mutant("credit leak", _credit_leaks, {}, {}, {}, {"buffer_size_bytes": 256}),
    Mutant(
        "watermark lost on restore", _watermark_not_restored, {}, _CRASHES, {**_SLOW, "size_ms": 200, "slide_ms": 50}
    ),
    Mutant("saved rows hidden without a change", _hidden_without_change, {}, _CRASHES, _SLOW | {"limits": PRODUCTION}),
    Mutant("only the last segment named", _only_last_segment, {}, _CRASHES, _SLOW),
    Mutant(
        "barrier not aligned",
        _barrier_not_aligned,
        {"frames-delayed": 0.15},
        {"worker-killed": 1.0},
        {**_SLOW, "phases": [Phase(3, "finish")]},
        {"checkpoint_interval_ms": 40},
    ),
    Mutant(
        "first barrier enough without alignment",
        _barrier_not_aligned,
        {"frames-delayed": 0.15},
        {"worker-killed": 1.0},
        {**_SLOW, "phases": [Phase(3, "finish")]},
        {"checkpoint_interval_ms": 40, "checkpoint_mode": "at-least-once"},
    ),
    Mutant(
        "ack counts for an older checkpoint", _later_ack_counts, _LATE_ACKS, _CRASHES, _SLOW, _OVERLAPPING, likely=6
    ),
    Mutant("older checkpoint appended later", _older_appended_later, _LATE_ACKS, {}, _SLOW, _OVERLAPPING),
    Mutant("output of a subsumed checkpoint dropped", _subsumed_output_dropped, _LATE_ACKS, {}, _SLOW, _OVERLAPPING),
    Mutant(
        "rows pass after a barrier",
        _block_ignored,
        {"frames-delayed": 0.2},
        {},
        _BUSY,
        {"checkpoint_interval_ms": 20},
        likely=3,
    ),
    Mutant("pending output dropped at restart", _pending_dropped, {"kill-before-init": 0.3}, {}, _SLOW),
    Mutant(
        "output not carried on",
        _output_not_carried_on,
        {"publish-delayed": 0.5, "kill-before-commit": 0.1},
        {},
        _SLOW,
        likely=2,
    ),
    Mutant("offsets read after the barrier", _split_offset_of_later, {}, _CRASHES, _SLOW),
    Mutant(
        "end entry trusted blindly",
        _end_forgets_unknown,
        {"put-fails-after": 0.6},
        {"jobmanager-killed": 1.0},
        {**_SLOW, "phases": _STAGES},
        seeds=60,
        likely=22,
    ),
    Mutant(
        "loss behind the end ignored",
        _loss_behind_end_ignored,
        {"frames-delayed": 0.9},
        {"connection-lost": 1.0},
        {"input_ms": 20.0, "phases": [Phase(3, "finish")]},
        seeds=100,
        likely=3,
        every_ms=200,
        faults_for_ms=6000,
    ),
    Mutant(
        "ended run goes on",
        _end_ignored,
        {"kill-after-manifest": 0.3},
        {},
        {**_SLOW, "phases": _STAGES},
        seeds=40,
        likely=3,
    ),
    Mutant(
        "floor of the other subtasks",
        _floor_of_the_others,
        {"message-delayed": 0.1},
        {"worker-killed": 1.0},
        {**_LONG, "phases": [Phase(3, "finish")]},
        {"checkpoint_interval_ms": 40},
        seeds=60,
        likely=3,
    ),
    Mutant(
        "a checkpoint in the log unknown to retention",
        _found_forgotten,
        {"put-fails-after": 0.5, "read-fails": 0.2, "publish-delayed": 0.5},
        {},
        {**_SLOW, "inline_bytes": 0, "limits": TINY},
        {"retained_checkpoints": 1, "checkpoint_interval_ms": 40},
        likely=12,
    ),
    Mutant(
        "changes of a key that leaves memory lost",
        _change_of_a_leaving_key_lost,
        {},
        _CRASHES,
        {**_SLOW, "limits": TINY.changed(hot_keys=1)},
        {"state_backend": "rocksdb"},
    ),
    Mutant(
        "row in flight lost",
        _row_in_flight_lost,
        {"frames-delayed": 0.2},
        {"worker-killed": 1.0},
        {**_FULL, "phases": [Phase(3, "finish")]},
        OVERTAKING,
        seeds=20,
        likely=2,
    ),
    Mutant(
        "rows overtaken on one side only",
        _overtaken_on_one_side,
        {},
        {"worker-killed": 1.0},
        {**_FULL, "phases": [Phase(2, "finish")]},
        OVERTAKING,
        seeds=20,
    ),
    Mutant(
        "row in flight restored twice",
        _row_restored_twice,
        {},
        {},
        {**_FULL, "slow_ms": 40.0, "phases": [Phase(3, "cancel"), Phase(2, "cancel"), Phase(3, "finish")]},
        OVERTAKING,
        seeds=20,
        likely=2,
    ),
    Mutant(
        "watermark overtakes restored rows",
        _watermark_overtakes_restored,
        {},
        {"worker-killed": 1.0},
        {**_FULL, "phases": [Phase(1, "finish")]},
        OVERTAKING,
        seeds=20,
    ),
    Mutant(
        "waiting row lost at a barrier",
        _waiting_row_lost,
        {},
        {"worker-killed": 1.0},
        {**_FETCHING, "phases": [Phase(2, "finish")]},
        OVERTAKING | _REMOTE,
        seeds=20,
    ),
    Mutant(
        "a row is processed before its state is loaded",
        _no_wait_for_a_part,
        {},
        {"worker-killed": 1.0},
        {**_SLOW, "limits": TINY, "phases": [Phase(2, "finish")]},
        seeds=20,
    ),
    Mutant(
        "waiting row restored twice",
        _waiting_row_taken_twice,
        {},
        {"worker-killed": 1.0},
        {**_FETCHING, "phases": [Phase(2, "finish")]},
        OVERTAKING | _REMOTE,
        seeds=20,
    ),
    Mutant(
        "copies are not compared with the manifest",
        _copies_not_compared,
        {COPY_DAMAGED: 0.5},
        {"worker-killed": 1.0},
        {**_SLOW, "inline_bytes": 0},
        {"local_recovery_bytes": 1 << 30},
    ),
    Mutant("savepoint sealed after its first part", _sealed_early, {}, {}, _SAVED, likely=2),
    Mutant("files of a native savepoint named by position", _native_by_number, {}, {}, _SAVED, likely=2),
    Mutant("files of a savepoint's parts share names", _parts_share_names, {}, {}, _SAVED, likely=5),
)
