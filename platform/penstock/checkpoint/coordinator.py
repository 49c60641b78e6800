"""The checkpoint coordinator of one deployment: decides when cuts are taken and when one is complete; a pure decider.

A member of `penstock.jobmanager.checkpoints.checkpointing`, which turns its commands into messages and manifests. One
checkpoint is under way at a time; savepoints and stops wait their turn. A checkpoint is complete for us when all acks
are in, and
*exists* when its manifest was appended: both are told by the caller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from penstock.core.elements import BarrierKind
from penstock.core.snapshot import CheckpointMetrics, SubtaskSnapshot
from penstock.graph.deployment import ExecutionId

#: A final checkpoint that failed is tried again after this long.
_FINAL_RETRY_MS = 1_000
#: After a failure the first checkpoint comes after this part of the interval: it publishes what was held up.
RESUMED_SOONER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The job's settings that matter here; milliseconds."""

    interval_ms: int | None
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    tolerated_failures: int = 0
    max_age_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """One subtask's part."""

    snapshot: SubtaskSnapshot
    metrics: CheckpointMetrics
    at_ms: int


@dataclass(slots=True)
class PendingCheckpoint:
    """The checkpoint under way."""

    checkpoint_id: int
    kind: BarrierKind
    #: Taken after all input had ended: what follows it is the end of the job.
    final: bool
    request_id: str
    triggered_ms: int
    expected: frozenset[ExecutionId]
    acks: dict[ExecutionId, Ack] = field(default_factory=dict)
    #: All acks are in; its manifest is being appended.
    appending: bool = False

    @property
    def label(self) -> str:
        """`checkpoint`, `savepoint`, `stop`, `drain` or `final`."""
        return "final" if self.final and self.kind is BarrierKind.CHECKPOINT else self.kind.value

    @property
    def complete(self) -> bool:
        """Whether every execution has acked."""
        return len(self.acks) == len(self.expected)


@dataclass(frozen=True, slots=True)
class TriggerBarrier:
    """Send the trigger to the sources."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class AppendCheckpoint:
    """All acks are in: append the manifest, then call `appended` or `append_failed`."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Tell the tasks and the requester that it will never be complete."""

    pending: PendingCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """A request that cannot be served any more."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """Checkpoints fail too often, or too long: restart the job."""

    reason: str


CoordinatorCommand = TriggerBarrier | AppendCheckpoint | AbortCheckpoint | RefuseRequest | FailJob


class CheckpointCoordinator:
    """Ids grow over all deployments of a run: each coordinator is given the next one."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        executions: Collection[ExecutionId],
        next_id: int,
        ended: Collection[ExecutionId] = (),
    ) -> None:
        """For one deployment; `executions` are all its subtasks, `ended` those whose input has ended already."""
        self._settings = settings
        self._executions = frozenset(executions)
        self.next_id = next_id
        self.current: PendingCheckpoint | None = None
        self.consecutive_failures = 0
        self._requests: list[tuple[BarrierKind, str]] = []
        self._ended: set[ExecutionId] = set(ended) & self._executions
        self._running = False
        #: A cut after which nothing follows is in the log.
        self._closed = False
        self._next_periodic_ms: int | None = None
        self._next_final_ms = 0
        self._last_good_ms = 0

    @property
    def all_inputs_ended(self) -> bool:
        """Whether every subtask waits for the final checkpoint."""
        return len(self._ended) == len(self._executions)

    @property
    def requested(self) -> tuple[BarrierKind, ...]:
        """What somebody has asked for and waits for, in the order of asking: the cut under way, then the queue."""
        current = self.current
        under_way = (current.kind,) if current is not None and current.request_id else ()
        return (*under_way, *(kind for kind, _ in self._requests))

    def start(self, now_ms: int, *, resumed: bool = False) -> list[CoordinatorCommand]:
        """All subtasks run and the sources have their splits; `resumed`: readers wait for output since a failure."""
        self._running = True
        self._last_good_ms = now_ms
        if self._settings.interval_ms is not None:
            first_ms = self._settings.interval_ms // RESUMED_SOONER if resumed else self._settings.interval_ms
            self._next_periodic_ms = now_ms + first_ms
        return self._next(now_ms)

    def stop(self, reason: str) -> list[CoordinatorCommand]:
        """The deployment is over: what is under way will never complete. An append under way is not called back."""
        self._running = False
        commands: list[CoordinatorCommand] = [RefuseRequest(request, reason) for _, request in self._requests]
        self._requests.clear()
        if self.current is not None:
            commands.insert(0, AbortCheckpoint(self.current, reason))
            self.current = None
        return commands

    def request(self, kind: BarrierKind, request_id: str, now_ms: int) -> list[CoordinatorCommand]:
        """A user wants a checkpoint, a savepoint or a stop."""
        if self._closed:
            return [RefuseRequest(request_id, "the job is about to end")]
        self._requests.append((kind, request_id))
        return self._next(now_ms)

    def withdraw(self) -> tuple[tuple[BarrierKind, str], ...]:
        """The deployment ends for a change: return what was asked for, to be asked for again behind it.

        A cut whose append is under way stays: it may exist already.
        """
        current = self.current
        taken, self._requests = self._requests, []
        if current is not None and current.request_id and not current.appending:
            taken.insert(0, (current.kind, current.request_id))
            current.request_id = ""
        return tuple(taken)

    def join(self, request_id: str, now_ms: int) -> list[CoordinatorCommand]:
        """A user wants the next checkpoint: the one under way, if nobody asked for that or waits, else one of its own.

        So that it never comes before what was asked for first.
        """
        current = self.current
        unasked = current is not None and current.kind is BarrierKind.CHECKPOINT and not current.request_id
        if current is not None and unasked and not self._requests:
            current.request_id = request_id
            return []
        return self.request(BarrierKind.CHECKPOINT, request_id, now_ms)

    def input_ended(self, execution: ExecutionId, now_ms: int) -> list[CoordinatorCommand]:
        """A subtask has processed all its input."""
        if execution in self._executions:
            self._ended.add(execution)
        return self._next(now_ms)

    def ack(self, checkpoint_id: int, execution: ExecutionId, ack: Ack) -> list[CoordinatorCommand]:
        """A subtask's part is durable; late and unknown ones are ignored."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id or execution not in current.expected:
            return []
        current.acks.setdefault(execution, ack)
        if not current.complete or current.appending:
            return []
        current.appending = True
        return [AppendCheckpoint(current)]

    def decline(self, checkpoint_id: int, execution: ExecutionId, reason: str, now_ms: int) -> list[CoordinatorCommand]:
        """A subtask could not take part."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id or current.appending:
            return []
        return self._fail(f"declined by {execution}: {reason}", now_ms)

    def appended(self, checkpoint_id: int, now_ms: int) -> list[CoordinatorCommand]:
        """The manifest is in the log."""
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
        """The manifest could not be written, or nobody knows."""
        current = self.current
        if current is None or current.checkpoint_id != checkpoint_id:
            return []
        return self._fail(f"its manifest was not written: {reason}", now_ms)

    def tick(self, now_ms: int) -> list[CoordinatorCommand]:
        """Time has passed."""
        current = self.current
        if current is not None and not current.appending and now_ms >= current.triggered_ms + self._settings.timeout_ms:
            missing = sorted(current.expected - set(current.acks))
            names = ", ".join(str(execution) for execution in missing[:3])
            text = f"not complete after {self._settings.timeout_ms} ms: {len(missing)} subtasks missing ({names})"
            return self._fail(text, now_ms)
        if self._too_old(now_ms):
            self._last_good_ms = now_ms
            return [FailJob(f"no checkpoint was completed for {self._settings.max_age_ms} ms")]
        return self._next(now_ms)

    def wake_ms(self) -> int | None:
        """When `tick` has something to do, or None."""
        if not self._running or self._closed:
            return None
        times = []
        if self.current is not None and not self.current.appending:
            times.append(self.current.triggered_ms + self._settings.timeout_ms)
        if self.current is None and self._next_periodic_ms is not None and not self.all_inputs_ended:
            times.append(self._next_periodic_ms)
        if self.current is None and self.all_inputs_ended:
            times.append(self._next_final_ms)
        if self._watches_age:
            times.append(self._last_good_ms + self._settings.max_age_ms)
        return min(times, default=None)

    @property
    def _watches_age(self) -> bool:
        return self._settings.max_age_ms > 0 and self._settings.interval_ms is not None

    def _too_old(self, now_ms: int) -> bool:
        watching = self._running and not self._closed and self._watches_age
        return watching and now_ms >= self._last_good_ms + self._settings.max_age_ms

    def _next(self, now_ms: int) -> list[CoordinatorCommand]:
        """Trigger what is due, if nothing is under way: requests first, then the final one, then the periodic one."""
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
        if self._settings.interval_ms is not None:
            self._next_periodic_ms = now_ms + self._settings.interval_ms
        return [TriggerBarrier(self.current)]

    def _fail(self, reason: str, now_ms: int) -> list[CoordinatorCommand]:
        current = self.current
        assert current is not None  # noqa: S101 - callers have checked; narrows the type
        self.current = None
        self._pause(now_ms)
        self._next_final_ms = now_ms + _FINAL_RETRY_MS
        commands: list[CoordinatorCommand] = [AbortCheckpoint(current, reason)]
        text = f"{current.label} {current.checkpoint_id} failed: {reason}"
        if current.kind.ends_job:
            # Sources are silent behind such a barrier: only a restart makes them speak again.
            return [*commands, FailJob(text)]
        if current.kind is not BarrierKind.SAVEPOINT:
            self.consecutive_failures += 1
            if self.consecutive_failures > self._settings.tolerated_failures:
                return [*commands, FailJob(f"{text} ({self.consecutive_failures} in a row)")]
        return commands + self._next(now_ms)

    def _pause(self, now_ms: int) -> None:
        if self._next_periodic_ms is not None:
            self._next_periodic_ms = max(self._next_periodic_ms, now_ms + self._settings.min_pause_ms)
