"""The checkpoint coordinator of one deployment: a pure decider that triggers and completes checkpoints.

A member of `penstock.jobmanager.checkpoints.checkpointing`, which turns its commands into messages and manifests. One
checkpoint is under way at a time; savepoints and stops wait in a queue. A checkpoint is complete when all acks are in.
It exists when its manifest is in the log; the caller reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

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
    """The checkpoint under way."""

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


@dataclass(frozen=True, slots=True)
class TriggerBarrier:
    """Send the barrier trigger to the sources."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class LetOvertake:
    """Let the barriers of the checkpoint under way overtake rows: they were not aligned in time."""

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
        self.current: PendingCheckpoint | None = None
        self.consecutive_failures = 0
        self._requests: list[tuple[BarrierKind, str]] = []
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
        """Return kind and id of requests that wait for an answer: the checkpoint under way first, then the queue."""
        current = self.current
        under_way = ((current.kind, current.request_id),) if current is not None and current.request_id else ()
        return (*under_way, *self._requests)

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
        """Abort the checkpoint under way and refuse all requests: the deployment is over.

        A manifest append that has begun is not cancelled.
        """
        self._running = False
        commands: list[CoordinatorCommand] = [RefuseRequest(request, reason) for _, request in self._requests]
        self._requests.clear()
        if self.current is not None:
            commands.insert(0, AbortCheckpoint(self.current, reason))
            self.current = None
        return commands

    def pause(self, executions: Collection[ExecutionId], reason: str) -> list[CoordinatorCommand]:
        """Trigger nothing until the next `start`: some of `executions`, the present subtasks, do not run yet.

        The checkpoint under way is aborted, as subtasks that it expects have ended. If its manifest is being appended,
        they all have acked: the log decides.
        """
        self._running = False
        self._executions = frozenset(executions)
        self._ended &= self._executions
        current = self.current
        if current is None or current.appending:
            return []
        self.current = None
        return [AbortCheckpoint(current, reason)]

    def request(self, kind: BarrierKind, request_id: str, now_ms: int) -> list[CoordinatorCommand]:
        """Queue a user's request for a checkpoint, a savepoint or a stop."""
        if self._closed:
            return [RefuseRequest(request_id, "the job is about to end")]
        self._requests.append((kind, request_id))
        return self._next(now_ms)

    def withdraw(self) -> tuple[tuple[BarrierKind, str], ...]:
        """Remove and return the open requests, for the deployment after the change.

        A checkpoint whose manifest is being appended keeps its request: it may exist already.
        """
        current = self.current
        taken, self._requests = self._requests, []
        if current is not None and current.request_id and not current.appending:
            taken.insert(0, (current.kind, current.request_id))
            current.request_id = ""
        return tuple(taken)

    def join(self, request_id: str, now_ms: int) -> list[CoordinatorCommand]:
        """Request the next checkpoint: the one under way if it has no requester and no request waits, else a new one.

        A new one is queued, so that it does not overtake earlier requests.
        """
        current = self.current
        unrequested = current is not None and current.kind is BarrierKind.CHECKPOINT and not current.request_id
        if current is not None and unrequested and not self._requests:
            current.request_id = request_id
            return []
        return self.request(BarrierKind.CHECKPOINT, request_id, now_ms)

    def input_ended(self, execution: ExecutionId, now_ms: int) -> list[CoordinatorCommand]:
        """Record that a subtask has processed all its input."""
        if execution in self._executions:
            self._ended.add(execution)
        return self._next(now_ms)

    def ack(self, checkpoint_id: int, execution: ExecutionId, ack: Ack) -> list[CoordinatorCommand]:
        """Record the acknowledgement of a subtask, whose part is durable; late and unknown ones are ignored."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id or execution not in current.expected:
            return []
        current.acks.setdefault(execution, ack)
        if not current.complete or current.appending:
            return []
        current.appending = True
        return [AppendCheckpoint(current)]

    def decline(self, checkpoint_id: int, execution: ExecutionId, reason: str, now_ms: int) -> list[CoordinatorCommand]:
        """Abort the checkpoint that a subtask has declined."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id or current.appending:
            return []
        return self._fail(f"declined by {self._name_of(execution)}: {reason}", now_ms)

    def appended(self, checkpoint_id: int, now_ms: int) -> list[CoordinatorCommand]:
        """Complete the checkpoint: its manifest is in the log."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id:
            return []
        self.current = None
        self.consecutive_failures = 0
        if current.kind is not BarrierKind.SAVEPOINT:
            self._last_good_ms = now_ms
        self._closed = self._closed or current.kind.ends_job or current.final
        self._pause(now_ms)
        return self._next(now_ms)

    def append_failed(self, checkpoint_id: int, reason: str, now_ms: int) -> list[CoordinatorCommand]:
        """Abort the checkpoint whose manifest append failed or has an unknown outcome."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id:
            return []
        return self._fail(reason, now_ms)

    def tick(self, now_ms: int) -> list[CoordinatorCommand]:
        """Abort a checkpoint that timed out, and trigger what is due."""
        current = self.current
        if current is not None and not current.appending and now_ms >= current.triggered_ms + self._settings.timeout_ms:
            missing = sorted(current.expected - set(current.acks))
            names = ", ".join(self._name_of(execution) for execution in missing[:3])
            lacking = f"{counted(len(missing), 'subtask')} missing ({names})"
            reason = f"not complete after {self._settings.timeout_ms} ms: {lacking}"
            if any(self._processed(execution) > current.processed[execution] for execution in missing):
                return self._fail(f"{reason}, but processing rows", now_ms, progressing=True)
            return self._fail(reason, now_ms)
        overtake_at = None if current is None else self._overtake_at(current)
        if current is not None and overtake_at is not None and now_ms >= overtake_at:
            current.overtakes = True
            return [LetOvertake(current)]
        if self._too_old(now_ms):
            self._last_good_ms = now_ms
            return [FailJob(f"no checkpoint was completed for {self._settings.max_age_ms} ms")]
        return self._next(now_ms)

    def wake_ms(self) -> int | None:
        """Return the time at which `tick` has work, or None."""
        if not self._running or self._closed:
            return None
        times = []
        if self.current is not None and not self.current.appending:
            times.append(self.current.triggered_ms + self._settings.timeout_ms)
            overtake_at = self._overtake_at(self.current)
            times += [] if overtake_at is None else [overtake_at]
        if self.current is None and self._next_periodic_ms is not None and not self.all_inputs_ended:
            times.append(self._next_periodic_ms)
        if self.current is None and self.all_inputs_ended:
            times.append(self._next_final_ms)
        if self._watches_age:
            times.append(self._last_good_ms + self._settings.max_age_ms)
        return min(times, default=None)

    def _overtake_at(self, current: PendingCheckpoint) -> int | None:
        """Return when the barriers of a checkpoint begin to overtake; None: not at all, or they do already.

        A savepoint or stop never does. Before a final checkpoint all rows were processed.
        """
        after_ms = self._settings.overtake_after_ms
        ordered = current.kind is not BarrierKind.CHECKPOINT or current.final or current.appending
        return None if after_ms is None or ordered or current.overtakes else current.triggered_ms + after_ms

    @property
    def _watches_age(self) -> bool:
        return self._settings.max_age_ms > 0 and self._settings.interval_ms is not None

    def _too_old(self, now_ms: int) -> bool:
        watching = self._running and not self._closed and self._watches_age
        return watching and now_ms >= self._last_good_ms + self._settings.max_age_ms

    def _next(self, now_ms: int) -> list[CoordinatorCommand]:
        """Trigger the next checkpoint if none is under way: requests first, then a final one, then the periodic one."""
        if not self._running or self.current is not None:
            return []
        if self._closed:
            refused = [RefuseRequest(request, "the job is about to end") for _, request in self._requests]
            self._requests.clear()
            return list(refused)
        kind, request_id = BarrierKind.CHECKPOINT, ""
        if self._requests:
            kind, request_id = self._requests.pop(0)
        elif self.all_inputs_ended:
            if now_ms < self._next_final_ms:
                return []
        elif self._next_periodic_ms is None or now_ms < self._next_periodic_ms:
            return []
        final = self.all_inputs_ended and kind is not BarrierKind.SAVEPOINT
        self.current = PendingCheckpoint(self.next_id, kind, final, request_id, now_ms, self._executions)
        self.next_id += 1
        self.current.overtakes = self._overtake_at(self.current) == now_ms
        self.current.processed = {execution: self._processed(execution) for execution in self._executions}
        if self._settings.interval_ms is not None:
            self._next_periodic_ms = now_ms + self._settings.interval_ms
        return [TriggerBarrier(self.current)]

    def _fail(self, reason: str, now_ms: int, *, progressing: bool = False) -> list[CoordinatorCommand]:
        """Abort the checkpoint under way; the job fails after too many of these in a row.

        `progressing`: only time was too short. A restart would repeat the rows and need more of it, so it counts as no
        failure; `max_age_ms` limits how often.
        """
        current = self.current
        assert current is not None  # noqa: S101 - callers have checked; narrows the type
        self.current = None
        self._pause(now_ms)
        self._next_final_ms = now_ms + _FINAL_RETRY_MS
        commands: list[CoordinatorCommand] = [AbortCheckpoint(current, reason)]
        text = f"{current.label} {current.checkpoint_id} failed: {reason}"
        if current.kind.ends_job:
            # Sources emit nothing after such a barrier; only a restart makes them emit again.
            return [*commands, FailJob(text)]
        if current.kind is not BarrierKind.SAVEPOINT and not progressing:
            self.consecutive_failures += 1
            if self.consecutive_failures > self._settings.tolerated_failures:
                return [*commands, FailJob(f"{text} ({self.consecutive_failures} in a row)")]
        return commands + self._next(now_ms)

    def _pause(self, now_ms: int) -> None:
        if self._next_periodic_ms is not None:
            self._next_periodic_ms = max(self._next_periodic_ms, now_ms + self._settings.min_pause_ms)
