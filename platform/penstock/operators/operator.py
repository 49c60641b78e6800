"""The operator protocol, its context and its collector: all the task loop knows of an operator.

One thread calls an operator, one call at a time; a call never blocks on output. Only `process_batch` is mandatory: a
class that names `Operator` as its protocol base inherits the other hooks' defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.elements import Barrier, Batch, Watermark, WatermarkStatus
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from penstock.config.settings import JobSettings
    from penstock.core.clock import Clock
    from penstock.core.keygroup import HashRange
    from penstock.core.permits import CommitPermit
    from penstock.core.snapshot import Committable, FileRef, OperatorStateSnapshot
    from penstock.graph.job_graph import OperatorSpec
    from penstock.state.keyed import FrozenState, KeyedStateStore


class Collector(Protocol):
    """Where an operator puts its output: the next operator of the chain, or the edges behind the chain."""

    def batch(self, batch: Batch) -> None:
        """Emit rows (never an empty batch)."""

    def watermark(self, watermark: Watermark) -> None:
        """Emit a watermark."""

    def status(self, status: WatermarkStatus) -> None:
        """Emit idle or active."""

    def side(self, tag: str, batch: Batch) -> None:
        """Emit rows to a side output."""


@dataclass(slots=True)
class OperatorMetrics:
    """Counters of one operator, read by the metrics reporter; an operator adds its own into `extra`."""

    late_records_dropped: int = 0
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Everything an operator may use; made by the task, passed to `open`."""

    spec: OperatorSpec
    job_id: str
    job_name: str
    run_id: str
    generation: int
    subtask: int
    attempt: int
    parallelism: int
    hash_range: HashRange
    settings: JobSettings
    clock: Clock
    metrics: OperatorMetrics
    #: Schemas of the inputs, by input index, with `__ts` where event time is set.
    input_schemas: tuple[pa.Schema, ...]
    #: Keyed state of this operator, already restored; None for operators without any.
    keyed_state: KeyedStateStore | None
    #: Restored non-keyed state, as handed out by the job.
    restored: tuple[OperatorStateSnapshot, ...]
    #: Asks the task loop to call again soon, from any thread (a reader has data, a commit has finished).
    wake: Callable[[], None]
    #: Runs a blocking piece of work off the subtask's thread; `done(result, error)` comes back as a mail in it. The
    #: text says what it does and to whom, for people who wait for it.
    run_async: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None], str], None]
    #: Tells the JobManager that these committables are published (their marker was read back).
    report_published: Callable[[tuple[str, ...]], None]
    #: Verified read of a staged file.
    read_file: Callable[[FileRef], bytes]
    restored_checkpoint: int | None = None
    #: Sinks: output of this subtask and run that an earlier attempt was not allowed to publish.
    held: tuple[Committable, ...] = ()
    #: Sizes of state and of what is emitted at a time.
    limits: StateLimits = PRODUCTION


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """A sink's epoch to be written with the checkpoint.

    The task uploads `chunks` (Arrow IPC files) and fills in `files`.
    """

    committable: Committable
    chunks: tuple[Callable[[], bytes], ...]


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """The synchronous part of an operator's snapshot; `keyed` and `staged` are written in the background."""

    keyed: tuple[FrozenState, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()
    #: Already durable (2pc), nothing left to write.
    committables: tuple[Committable, ...] = ()
    staged: tuple[StagedOutput, ...] = ()


class Operator(Protocol):
    """One operator of a chain."""

    def open(self, context: OperatorContext) -> None:
        """Called once, before anything else, with state restored."""

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Take rows, emit rows."""

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Event time has reached `watermark`; emit what it closes, then (usually) the watermark itself."""
        out.watermark(watermark)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        """The combined input became idle or active."""
        out.status(status)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze: no I/O, milliseconds; rows emitted to `out` here still belong before the barrier."""
        del barrier, out
        return OperatorSnapshot()

    def notify_complete(self, permit: CommitPermit) -> None:
        """The checkpoint is durable."""

    def notify_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be complete; nothing of it may be deleted or forgotten."""

    def finish(self, out: Collector) -> None:
        """All input has ended (after the watermark at the end of time); emit the rest."""

    def close(self) -> None:
        """Free everything; also called after a failure; idempotent."""


class SourceOperator(Protocol):
    """The head of a source chain, polled by the task loop instead of being fed.

    Also an `Operator` (its `process_batch` is never called).
    """

    def poll(self, out: Collector, *, backpressured: bool) -> bool:
        """Emit what there is (one bounded piece); return whether anything was emitted.

        Called with `backpressured` when output is full: only time passes.
        """

    def add_splits(self, splits: Iterable[Any], *, no_more: bool) -> None:
        """Splits assigned by the job."""

    def align(self, limit: int) -> None:
        """Wait while the watermark is above `limit` (us): other sources are behind."""

    @property
    def drained(self) -> bool:
        """Whether the last poll took all there was: the next one may wait a moment for company."""

    @property
    def finished(self) -> bool:
        """Whether all splits have ended and no more will come (bounded input)."""

    def suspend(self) -> None:
        """Emit no more rows (behind a stopping barrier)."""


class TimedOperator(Protocol):
    """An operator with timers of processing time; the task calls it when the next one is due and output has room."""

    @property
    def next_timer_ms(self) -> float | None:
        """When the next timer is due, as `Clock.now_ms` counts; None: there is none."""

    def process_time(self, now_ms: int, out: Collector) -> None:
        """Processing time has come to `now_ms`; emit what that closes."""


class ContinuingOperator(Protocol):
    """An operator whose rows get ready outside calls; asked whenever there is room for what it emits."""

    def go_on(self, out: Collector) -> bool:
        """Emit what has got ready, also while `available` is false; return whether there was anything."""

    @property
    def held(self) -> bool:
        """Whether there is still something to emit; at the end of input `finish` is called when there is not."""


class BlockingOperator(Protocol):
    """One that asks for back-pressure without blocking a call: a sink whose pending output has reached its limit."""

    @property
    def available(self) -> bool:
        """False: the task must not feed rows now; barriers still pass."""


class NarrowingOperator(Protocol):
    """One that looks columns up by name and hands on no more of them than are looked at behind it."""

    def narrow(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        """Take the names of the columns that are looked at behind, return those that have to come in; None: all.

        Called once, between `open` and the first batch; an operator without it looks at all columns.
        """
