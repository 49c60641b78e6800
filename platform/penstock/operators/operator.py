"""The operator protocol, its context and its collector: the interface between operators and the task loop.

One thread calls an operator, one call at a time; a call never blocks on output. Only `process_batch` is mandatory: a
class that names `Operator` as its protocol base inherits the other hooks' defaults. Abilities that only some operators
have are separate protocols, declared in the `Capabilities` that `open` returns.
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
    from penstock.eventtime.split_watermarks import SplitWatermarks
    from penstock.graph.job_graph import OperatorSpec
    from penstock.state.log.arrival import ArrivingState
    from penstock.state.log.frozen import FrozenTable
    from penstock.state.store import KeyedState


class Collector(Protocol):
    """The receiver of an operator's output: the next operator of the chain, or the chain's outgoing edges."""

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
    """Counters and texts of one operator, read by the metrics reporter; an operator adds its own."""

    late_records_dropped: int = 0
    extra: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The services and parameters of an operator; made by the task, passed to `open`."""

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
    #: Schemas of the inputs, by input index, with `__ts` if they have event time.
    input_schemas: tuple[pa.Schema, ...]
    #: Keyed state of this operator, already restored; None for operators without any.
    keyed_state: KeyedState | None
    #: Restored non-keyed state, as assigned by the JobMaster.
    restored: tuple[OperatorStateSnapshot, ...]
    #: Asks the task loop for a call soon, from any thread (a reader has data, a commit has finished).
    wake: Callable[[], None]
    #: Runs blocking work off the subtask's thread; `done(result, error)` is then called in that thread by a mail. The
    #: text describes the work and its target, for diagnostics of a waiting task.
    run_async: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None], str], None]
    #: Runs work in the subtask's thread that may wait for an external system, and returns its result. The text
    #: describes the work and its target: a long wait is a slow call.
    run_waiting: Callable[[Callable[[], Any], str], Any]
    #: Reports to the JobManager that these committables are published (their marker was read back).
    report_published: Callable[[tuple[str, ...]], None]
    #: Verified read of a staged file.
    read_file: Callable[[FileRef], bytes]
    restored_checkpoint: int | None = None
    #: Sinks: output of this subtask and run that an earlier attempt could not publish.
    uncommitted: tuple[Committable, ...] = ()
    #: Limits for state size and output batches.
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

    keyed: tuple[FrozenTable, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()
    #: Already durable (2pc), nothing left to write.
    committables: tuple[Committable, ...] = ()
    staged: tuple[StagedOutput, ...] = ()


class Operator(Protocol):
    """One operator of a chain."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Prepare for work, with state restored; return the other abilities. Called once, before any other method."""
        del context
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Take rows, emit rows."""

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Handle event time `watermark`: emit the results that it completes, then (usually) the watermark itself."""
        out.watermark(watermark)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        """Handle a change of the combined input to idle or active."""
        out.status(status)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze without I/O, in milliseconds; rows emitted to `out` here still belong before the barrier."""
        del barrier, out
        return OperatorSnapshot()

    def notify_complete(self, permit: CommitPermit) -> None:
        """Handle a durable checkpoint; the task itself tells the keyed state."""
        del permit

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Handle a checkpoint that will never complete; none of its output may be deleted or dropped."""
        del checkpoint_id

    def finish(self, out: Collector) -> None:
        """Emit the rest: all input has ended (after the watermark at the end of time)."""
        del out

    def close(self) -> None:
        """Free all resources; also called after a failure; idempotent."""
        return


class SourceOperator(Protocol):
    """The head of a source chain, polled instead of fed; also an `Operator` (its `process_batch` is never called)."""

    #: Rows to emit in one poll, at most; the task lowers it before slow row functions.
    poll_rows: int

    def poll(self, out: Collector, *, backpressured: bool) -> bool:
        """Emit a bounded batch, return whether there was one; `backpressured`: output is full, only time passes."""

    def add_splits(self, splits: Iterable[Any], *, no_more: bool) -> None:
        """Take splits assigned by the JobMaster."""

    def align(self, limit: int) -> None:
        """Wait while the watermark is above `limit` (us), because other sources are slower."""

    @property
    def drained(self) -> bool:
        """Whether the last poll took all available rows: the task may delay the next one for larger batches."""

    @property
    def finished(self) -> bool:
        """Whether all splits have ended and no further ones follow (bounded input)."""

    def suspend(self) -> None:
        """Stop emitting rows (after a stopping barrier)."""


class TimedOperator(Protocol):
    """An operator with timers of processing time; the task calls it when the next one is due and output has room."""

    @property
    def next_timer_ms(self) -> float | None:
        """Return the time of the next timer, as `Clock.now_ms` counts, or None."""

    def process_time(self, now_ms: int, out: Collector) -> None:
        """Handle processing time `now_ms`: emit the results that it completes."""


class PendingOutputOperator(Protocol):
    """An operator that completes rows outside of calls; the task calls it whenever output has room."""

    def emit_ready(self, out: Collector) -> bool:
        """Emit completed rows, also while `available` is false; return whether there were any."""

    @property
    def has_pending_output(self) -> bool:
        """Whether output is pending; at the end of input `finish` is called once there is none."""


class PublishingOperator(Protocol):
    """A sink that stages output with a checkpoint and publishes it after the checkpoint is durable."""

    @property
    def publishing(self) -> bool:
        """Whether output is being published now."""

    @property
    def has_unpublished(self) -> bool:
        """Whether output of a checkpoint is not known to be published; read from any thread."""

    def staged_written(self, committable: Committable) -> None:
        """Take a committable whose files are durable, but not yet part of a complete checkpoint."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of an operator beyond the hooks of `Operator`: the operator itself, one of its parts, or a function."""

    source: SourceOperator | None = None
    timers: TimedOperator | None = None
    pending_output: PendingOutputOperator | None = None
    #: Asks for back-pressure without blocking; False: the task must not feed rows now, barriers still pass.
    available: Callable[[], bool] | None = None
    #: Takes the columns used downstream and returns the required input columns; None: all. Called once, after `open`.
    required_columns: Callable[[frozenset[str] | None], frozenset[str] | None] | None = None
    publishing: PublishingOperator | None = None
    #: Returns the watermark of each split of the input; None: there are none, for example without event time.
    split_watermarks: Callable[[], SplitWatermarks | None] | None = None
    #: Layout of rows that were combined before the shuffle (`Batch.combined`); None: the operator takes none.
    combined_schema: pa.Schema | None = None
    #: The state that its rows need, if a part of it is fetched or loaded later; None: it processes any row at any time.
    arriving: ArrivingState | None = None


NO_CAPABILITIES = Capabilities()
