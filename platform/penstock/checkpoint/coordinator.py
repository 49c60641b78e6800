"""The checkpoint coordinator of one deployment: a pure decider that triggers and completes checkpoints.

A member of `penstock.jobmanager.checkpoints.checkpointing`, which turns its commands into messages and manifests. Up
to `max_concurrent` checkpoints are under way at a time. Savepoints, stops and the final checkpoint are alone: they wait
for those under way, in a queue. A checkpoint is complete when all acks are in. It exists when its manifest is in the
log; the caller reports that. Manifests are appended in the order of their ids, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.counts import counted
from penstock.core.elements import BarrierKind
from penstock.core.snapshot import CheckpointMetrics, SubtaskSnapshot
from penstock.graph.task_deployment import ExecutionId

#: Delay before a failed final checkpoint is tried again.
_FINAL_RETRY_MS = 1_000
#: After a failure the first checkpoint comes after the interval divided by this: it publishes the delayed output.
RESUME_INTERVAL_DIVISOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The checkpoint settings of the job; milliseconds."""

    interval_ms: int | None
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    tolerated_failures: int = 0
    max_age_ms: int = 0
    #: Checkpoints that may be under way at a time; 1 if their barriers may overtake.
    max_concurrent: int = 1
    #: Time after the trigger from which barriers of checkpoints overtake rows; None: never.
    overtake_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The acknowledgement of one subtask."""

    snapshot: SubtaskSnapshot
    metrics: CheckpointMetrics
    at_ms: int


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint under way."""

    checkpoint_id: int
    kind: BarrierKind
    #: Triggered after all input had ended: the job ends after it.
    final: bool
    request_id: str
    triggered_ms: int
    expected: frozenset[ExecutionId]
    acks: dict[ExecutionId, Ack] = field(default_factory=dict)
    #: All acks are in; its manifest is being appended.
    appending: bool = False
    #: Its barriers overtake rows.
    overtakes: bool = False
    #: Whether its request wants them to; None: by the settings.
    unaligned: bool | None = None
    #: Rows that each subtask had processed at the trigger, as far as reported.
    processed: dict[ExecutionId, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return `checkpoint`, `savepoint`, `stop`, `drain` or `final`."""
        return "final" if self.final and self.kind is BarrierKind.CHECKPOINT else self.kind.value

    @property
    def tag(self) -> str:
        """Return its name in event logs."""
        return f"{self.label}:{self.checkpoint_id}"

    @property
    def complete(self) -> bool:
        """Return whether every execution has acked."""
        return len(self.acks) == len(self.expected)

    @property
    def alone(self) -> bool:
        """Return whether no other checkpoint may be under way beside it."""
        return self.final or self.kind is not BarrierKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class TriggerBarrier:
    """Send the barrier trigger to the sources."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class LetOvertake:
    """Let the barriers of a checkpoint under way overtake rows: they were not aligned in time."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class AppendCheckpoint:
    """All acks are in: append the manifest, then call `appended` or `append_failed`."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Notify the tasks and the requester that the checkpoint was aborted."""

    pending: PendingCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Refuse a request that can no longer be served."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """Restart the job: too many checkpoints failed, or none completed for too long."""

    reason: str


class _Request(NamedTuple):
    """A requested checkpoint that is not triggered yet."""

    kind: BarrierKind
    request_id: str
    #: As in `PendingCheckpoint`.
    unaligned: bool | None = None


CoordinatorCommand = TriggerBarrier | LetOvertake | AppendCheckpoint | AbortCheckpoint | RefuseRequest | FailJob


class CheckpointCoordinator:
    """Triggers, completes and aborts the checkpoints of one deployment.

    Ids grow over all deployments of a run: each coordinator receives the next one.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        executions: Collection[ExecutionId],
        next_id: int,
        ended: Collection[ExecutionId] = (),
        name_of: Callable[[ExecutionId], str] = str,
        processed: Callable[[ExecutionId], float] = lambda _: 0.0,
    ) -> None:
        """Coordinate one deployment; `executions` are its subtasks, `ended` those whose input has already ended.

        `name_of` returns the name of a subtask for messages, `processed` the rows that it has processed by its last
        report.
        """
        self._name_of = name_of
        self._processed = processed
        self._settings = settings
        self._executions = frozenset(executions)
        self.next_id = next_id
        #: Checkpoints under way, by id, oldest first.
        self._pending: dict[int, PendingCheckpoint] = {}
        self.consecutive_failures = 0
        self._requests: list[_Request] = []
        self._ended: set[ExecutionId] = set(ended) & self._executions
        self._running = False
        #: The last checkpoint of the job is in the log.
        self._closed = False
        self._next_periodic_ms: int | None = None
        self._next_final_ms = 0
        self._last_good_ms = 0

    @property
    def all_inputs_ended(self) -> bool:
        """Return whether every subtask waits for the final checkpoint."""
        return len(self._ended) == len(self._executions)

    @property
    def requested(self) -> tuple[tuple[BarrierKind, str], ...]:
        """Return kind and id of requests that wait for an answer: of checkpoints under way first, then the queue."""
        under_way = [(pending.kind, pending.request_id) for pending in self._pending.values() if pending.request_id]
        return (*under_way, *((asked.kind, asked.request_id) for asked in self._requests))

    def under_way(self, checkpoint_id: int | None) -> PendingCheckpoint | None:
        """Return the checkpoint with this id if it is under way."""
        return None if checkpoint_id is None else self._pending.get(checkpoint_id)

    @property
    def is_ending(self) -> bool:
        """Return whether the last checkpoint of the job is under way or requested."""
        final = any(pending.final for pending in self._pending.values())
        return final or any(kind.ends_job for kind, _ in self.requested)

    @property
    def oldest_id(self) -> int:
        """Return the id of the oldest checkpoint under way, or of the next one if there is none."""
        return min(self._pending, default=self.next_id)

    def triggers_by(self, at_ms: int) -> bool:
        """Return whether a periodic checkpoint is due by `at_ms`."""
        due_ms = self._next_periodic_ms
        return self._running and not self._closed and due_ms is not None and due_ms <= at_ms

    def start(self, now_ms: int, *, resumed: bool = False, adopted: bool = False) -> list[CoordinatorCommand]:
        """Start triggering: all subtasks run, sources have their splits.

        `resumed`: the deployment follows a failure, so readers wait for output. `adopted`: an earlier leader has
        triggered a checkpoint that may not have reached all sources; channels wait until another barrier replaces it.
        """
        self._running = True
        self._last_good_ms = now_ms
        if self._settings.interval_ms is not None:
            first_ms = self._settings.interval_ms // RESUME_INTERVAL_DIVISOR if resumed else self._settings.interval_ms
            self._next_periodic_ms = now_ms if adopted else now_ms + first_ms
        return self._next(now_ms)

    def stop(self, reason: str) -> list[CoordinatorCommand]:
        """Abort the checkpoints under way and refuse all requests: the deployment is over.

        A manifest append that has begun is not cancelled.
        """
        self._running = False
        commands: list[CoordinatorCommand] = [AbortCheckpoint(pending, reason) for pending in self._pending.values()]
        commands += [RefuseRequest(asked.request_id, reason) for asked in self._requests]
        self._requests.clear()
        self._pending.clear()
        return commands

    def pause(self, executions: Collection[ExecutionId], reason: str) -> list[CoordinatorCommand]:
        """Trigger nothing until the next `start`: some of `executions`, the present subtasks, do not run yet.

        All checkpoints under way are aborted, as subtasks that they expect have ended; those that wait to be appended
        too, for no append may begin now. If a manifest is being appended, its subtasks have all acked: the log decides.
        """
        self._running = False
        self._executions = frozenset(executions)
        self._ended &= self._executions
        aborted = [pending for pending in self._pending.values() if not pending.appending]
        for pending in aborted:
            del self._pending[pending.checkpoint_id]
        return [AbortCheckpoint(pending, reason) for pending in aborted]

    def request(
        self, kind: BarrierKind, request_id: str, now_ms: int, *, unaligned: bool | None = None
    ) -> list[CoordinatorCommand]:
        """Queue a user's request for a checkpoint, a savepoint or a stop.

        `unaligned`: barriers of a checkpoint overtake rows from the trigger, or never; None: by the settings.
        """
        if self._closed:
            return [RefuseRequest(request_id, "the job is about to end")]
        self._requests.append(_Request(kind, request_id, unaligned))
        return self._next(now_ms)

    def withdraw(self) -> tuple[tuple[BarrierKind, str], ...]:
        """Remove and return the open requests, for the deployment after the change.

        A checkpoint whose manifest is being appended keeps its request: it may exist already.
        """
        queued, self._requests = self._requests, []
        asked = [pending for pending in self._pending.values() if pending.request_id and not pending.appending]
        under_way = [(pending.kind, pending.request_id) for pending in asked]
        for pending in asked:
            pending.request_id = ""
        return (*under_way, *((one.kind, one.request_id) for one in queued))

    def join(self, request_id: str, now_ms: int) -> list[CoordinatorCommand]:
        """Request the next checkpoint: the newest under way without a requester if no request waits, else a new one.

        A new one is queued, so that it does not overtake earlier requests.
        """
        plain = [p for p in self._pending.values() if p.kind is BarrierKind.CHECKPOINT and not p.request_id]
        if plain and not self._requests:
            plain[-1].request_id = request_id
            return []
        return self.request(BarrierKind.CHECKPOINT, request_id, now_ms)

    def input_ended(self, execution: ExecutionId, now_ms: int) -> list[CoordinatorCommand]:
        """Record that a subtask has processed all its input."""
        if execution in self._executions:
            self._ended.add(execution)
        return self._next(now_ms)

    def ack(self, checkpoint_id: int, execution: ExecutionId, ack: Ack) -> list[CoordinatorCommand]:
        """Record the acknowledgement of a subtask, whose part is durable; late and unknown ones are ignored."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or execution not in pending.expected:
            return []
        pending.acks.setdefault(execution, ack)
        return self._append_next()

    def decline(self, checkpoint_id: int, execution: ExecutionId, reason: str, now_ms: int) -> list[CoordinatorCommand]:
        """Abort the checkpoint that a subtask has declined."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.complete:
            return []
        return self._fail(pending, f"declined by {self._name_of(execution)}: {reason}", now_ms)

    def appended(self, checkpoint_id: int, now_ms: int) -> list[CoordinatorCommand]:
        """Complete the checkpoint: its manifest is in the log."""
        done = self._pending.pop(checkpoint_id, None)
        if done is None:
            return []
        self.consecutive_failures = 0
        if done.kind is not BarrierKind.SAVEPOINT:
            self._last_good_ms = now_ms
        self._closed = self._closed or done.kind.ends_job or done.final
        self._pause(now_ms)
        return self._append_next() + self._next(now_ms)

    def append_failed(self, checkpoint_id: int, reason: str, now_ms: int) -> list[CoordinatorCommand]:
        """Abort the checkpoint whose manifest append failed or has an unknown outcome."""
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return []
        return self._fail(pending, reason, now_ms)

    def tick(self, now_ms: int) -> list[CoordinatorCommand]:
        """Abort a checkpoint that timed out, and trigger what is due; if more is due, `wake_ms` is not later."""
        for pending in self._pending.values():
            if not pending.complete and now_ms >= pending.triggered_ms + self._settings.timeout_ms:
                return self._time_out(pending, now_ms)
            if now_ms >= self._overtake_at(pending, default=now_ms + 1):
                pending.overtakes = True
                return [LetOvertake(pending)]
        if self._too_old(now_ms):
            self._last_good_ms = now_ms
            return [FailJob(f"no checkpoint was completed for {self._settings.max_age_ms} ms")]
        return self._next(now_ms)

    def wake_ms(self) -> int | None:
        """Return the time at which `tick` has work, or None."""
        if not self._running or self._closed:
            return None
        times = []
        for pending in self._pending.values():
            if not pending.complete:
                timeout_at = pending.triggered_ms + self._settings.timeout_ms
                times.append(min(timeout_at, self._overtake_at(pending, default=timeout_at)))
        if not self._requests and self._has_room(alone=self.all_inputs_ended):
            due_ms = self._next_final_ms if self.all_inputs_ended else self._next_periodic_ms
            times += [] if due_ms is None else [due_ms]
        if self._watches_age:
            times.append(self._last_good_ms + self._settings.max_age_ms)
        return min(times, default=None)

    def _overtake_at(self, pending: PendingCheckpoint, default: int) -> int:
        """Return when the barriers of a checkpoint begin to overtake; `default`: not at all, or they do already.

        A savepoint or stop never does. Before a final checkpoint all rows were processed.
        """
        after_ms = self._settings.overtake_after_ms
        aligned = pending.unaligned is False or pending.alone
        if after_ms is None or aligned or pending.complete or pending.overtakes:
            return default
        return pending.triggered_ms + (0 if pending.unaligned else after_ms)

    @property
    def _watches_age(self) -> bool:
        return self._settings.max_age_ms > 0 and self._settings.interval_ms is not None

    def _too_old(self, now_ms: int) -> bool:
        watching = self._running and not self._closed and self._watches_age
        return watching and now_ms >= self._last_good_ms + self._settings.max_age_ms

    def _append_next(self) -> list[CoordinatorCommand]:
        """Append the oldest complete checkpoint, one at a time; older ones that are incomplete are subsumed by it.

        Their segments and their output are part of it. Appended later, they would come after a newer one in the log.
        """
        complete = next((pending for pending in self._pending.values() if pending.complete), None)
        if complete is None or any(pending.appending for pending in self._pending.values()):
            return []
        commands: list[CoordinatorCommand] = []
        for older in [p for p in self._pending.values() if p.checkpoint_id < complete.checkpoint_id]:
            del self._pending[older.checkpoint_id]
            if older.request_id:  # a later checkpoint answers it
                self._requests.insert(0, _Request(older.kind, older.request_id, older.unaligned))
                older.request_id = ""
            commands.append(AbortCheckpoint(older, f"subsumed by checkpoint {complete.checkpoint_id}"))
        complete.appending = True
        return [*commands, AppendCheckpoint(complete)]

    def _has_room(self, *, alone: bool) -> bool:
        """Return whether another checkpoint may be triggered, `alone` or beside those under way."""
        if not self._pending:
            return True
        shared = not alone and not any(pending.alone for pending in self._pending.values())
        return shared and len(self._pending) < self._settings.max_concurrent

    def _next(self, now_ms: int) -> list[CoordinatorCommand]:
        """Trigger what is due while there is room: requests first, then a final checkpoint, then periodic ones."""
        commands: list[CoordinatorCommand] = []
        while self._running and (due := self._due(now_ms)) is not None:
            final = self.all_inputs_ended and due.kind is not BarrierKind.SAVEPOINT
            pending = PendingCheckpoint(self.next_id, due.kind, final, due.request_id, now_ms, self._executions)
            pending.unaligned = due.unaligned
            self._pending[self.next_id] = pending
            self.next_id += 1
            pending.overtakes = self._overtake_at(pending, default=now_ms + 1) == now_ms
            pending.processed = {execution: self._processed(execution) for execution in self._executions}
            if self._settings.interval_ms is not None:
                self._next_periodic_ms = now_ms + self._settings.interval_ms
            commands.append(TriggerBarrier(pending))
        if self._running and self._closed:
            commands += [RefuseRequest(asked.request_id, "the job is about to end") for asked in self._requests]
            self._requests.clear()
        return commands

    def _due(self, now_ms: int) -> _Request | None:
        """Take and return the request of the checkpoint to trigger now, whose id is empty if it is due; None: none."""
        if self._closed:
            return None
        if self._requests:
            alone = self.all_inputs_ended or self._requests[0].kind is not BarrierKind.CHECKPOINT
            return self._requests.pop(0) if self._has_room(alone=alone) else None
        due_ms = self._next_final_ms if self.all_inputs_ended else self._next_periodic_ms
        if due_ms is None or now_ms < due_ms or not self._has_room(alone=self.all_inputs_ended):
            return None
        return _Request(BarrierKind.CHECKPOINT, "")

    def _time_out(self, pending: PendingCheckpoint, now_ms: int) -> list[CoordinatorCommand]:
        missing = sorted(pending.expected - set(pending.acks))
        names = ", ".join(self._name_of(execution) for execution in missing[:3])
        lacking = f"{counted(len(missing), 'subtask')} missing ({names})"
        reason = f"not complete after {self._settings.timeout_ms} ms: {lacking}"
        if any(self._processed(execution) > pending.processed[execution] for execution in missing):
            return self._fail(pending, f"{reason}, but processing rows", now_ms, progressing=True)
        return self._fail(pending, reason, now_ms)

    def _fail(
        self, failed: PendingCheckpoint, reason: str, now_ms: int, *, progressing: bool = False
    ) -> list[CoordinatorCommand]:
        """Abort a checkpoint under way; the job fails after too many of these in a row.

        `progressing`: only time was too short. A restart would repeat the rows and need more of it, so it counts as no
        failure; `max_age_ms` limits how often.
        """
        del self._pending[failed.checkpoint_id]
        self._pause(now_ms)
        self._next_final_ms = now_ms + _FINAL_RETRY_MS
        commands: list[CoordinatorCommand] = [AbortCheckpoint(failed, reason)]
        text = f"{failed.label} {failed.checkpoint_id} failed: {reason}"
        if failed.kind.ends_job:
            # Sources emit nothing after such a barrier; only a restart makes them emit again.
            return [*commands, FailJob(text)]
        if failed.kind is not BarrierKind.SAVEPOINT and not progressing:
            self.consecutive_failures += 1
            if self.consecutive_failures > self._settings.tolerated_failures:
                return [*commands, FailJob(f"{text} ({self.consecutive_failures} in a row)")]
        return commands + self._append_next() + self._next(now_ms)

    def _pause(self, now_ms: int) -> None:
        if self._next_periodic_ms is not None:
            self._next_periodic_ms = max(self._next_periodic_ms, now_ms + self._settings.min_pause_ms)
