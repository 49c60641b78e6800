"""One subtask: mails, due flushes, an element, in steps that never block, and the result of a step.

Driven by `task.drive.threads` or the simulator.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core import logs
from penstock.core.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Barrier,
    BarrierKind,
    Batch,
    EndOfInput,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from penstock.core.errors import PenstockError
from penstock.eventtime.watermarks import WatermarkMerger
from penstock.network.in_flight import OvertakenRows
from penstock.rpc.messages import CheckpointAborted, CheckpointCompleted
from penstock.state.memory.budget import MemoryBudget
from penstock.state.store import close_stores
from penstock.task.chain.chain import combine_outputs, expect_combined
from penstock.task.chain.environment import TaskReports
from penstock.task.chain.failure import describe
from penstock.task.chain.operator_times import TaskScope
from penstock.task.checkpoint.barriers import Aligned, Barriers
from penstock.task.checkpoint.compaction import Compactor
from penstock.task.checkpoint.restore import (
    ChainServices,
    build_chain,
    input_watermark_state,
    open_chain,
    overtaken_files,
    restored_rows,
    restored_watermark,
)
from penstock.task.checkpoint.snapshot_pipeline import SnapshotPipeline, SnapshotServices, SubtaskCheckpoint
from penstock.task.drive.batch_sizer import BatchSizer, feeds_rows
from penstock.task.drive.source_polling import PollSizer, RowLimit, SourcePacing, is_columnar, poll
from penstock.task.drive.subtask_metrics import BACK_PRESSURED, BUSY, IDLE, SubtaskMetrics
from penstock.task.drive.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from penstock.graph.job_graph import OperatorSpec
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.input_gate import InputGate
    from penstock.operators.operator import OperatorSnapshot
    from penstock.state.log.arrival import PartialRestore
    from penstock.state.store import KeyedState
    from penstock.task.chain.background import Mail
    from penstock.task.chain.chain import Chain, ChainLink
    from penstock.task.chain.environment import JobServices, TaskEnvironment


class StepResult(enum.Enum):
    """The next call: at once (BUSY), after a wake-up or deadline, or never (DONE)."""

    BUSY = "busy"
    IDLE = "idle"
    BACKPRESSURED = "backpressured"
    DONE = "done"


#: Mails are triggers, completions and finished uploads: thousands of waiting ones mean that the subtask hangs.
CAPACITY = 10_000


class MailboxFullError(PenstockError):
    """The subtask has not read its mailbox for a long time."""


class Mailbox:
    """Thread-safe; `wake` is called, without a lock held, after each urgent post."""

    def __init__(self, wake: Callable[[], None], capacity: int = CAPACITY) -> None:
        """Start empty and open."""
        self._mails: deque[Mail] = deque()
        self._lock = threading.Lock()
        self._wake = wake
        self._capacity = capacity
        self._closed = False

    def post(self, mail: Mail, *, urgent: bool = True) -> bool:
        """Append a mail; return False if the mailbox is closed and the mail was dropped.

        A mail that is not urgent waits for the next step: a wake-up costs more CPU time than most mails.

        Raises:
            MailboxFullError: more than the capacity waits.
        """
        with self._lock:
            if self._closed:
                return False
            if len(self._mails) >= self._capacity:
                msg = f"{self._capacity} mails wait for one subtask"
                raise MailboxFullError(msg, hint="a user function or a client call has not returned")
            self._mails.append(mail)
        if urgent:
            self._wake()
        return True

    def take(self) -> Mail | None:
        """Return the oldest mail, or None."""
        if not self._mails:
            return None
        with self._lock:
            return self._mails.popleft() if self._mails else None

    def close(self) -> None:
        """Drop the waiting mails and all later ones."""
        with self._lock:
            self._closed = True
            self._mails.clear()


class Subtask:
    """One subtask; all methods but those that post run in one thread. `wake` is called from any thread."""

    def __init__(
        self,
        deployment: TaskDeployment,
        environment: TaskEnvironment,
        services: JobServices,
        wake: Callable[[], None],
    ) -> None:
        """Make channels and chain; operators are not opened."""
        self.deployment, self._environment, self._services = deployment, environment, services
        self._clock = environment.clock
        prepared = services.prepared
        self._memory_budget = MemoryBudget(services.managed_memory_bytes) if prepared is None else prepared.budget
        self._wake = wake
        self.reports = TaskReports(deployment, services.send)
        self.mailbox = Mailbox(wake)
        self._gate = environment.network.create_gate(deployment, wake, services.network)
        self._outputs = list(environment.network.create_outputs(deployment, wake))
        self._chain = build_chain(deployment, environment, self._outputs)
        operators = deployment.operators
        #: Cuts batches before row functions; None: the chain takes whole batches.
        self._batch_sizer = BatchSizer(self._chain, self._clock) if feeds_rows(operators) else None
        columnar = is_columnar([operator.kind for operator in operators])
        self._poll_limit: RowLimit | None = self._batch_sizer or (PollSizer() if columnar else None)
        aligned = deployment.settings.checkpoint_mode == "exactly-once"
        self._barriers = Barriers(self._gate, self._chain, self._clock, self.reports, aligned=aligned)
        #: Whether rows after a barrier could come without bound while the sink is at its limit.
        self._holds_back = self._gate is not None and not aligned
        self._barriers.take_snapshot = self._take_snapshot
        self._barriers.overtake = self._overtake
        self._overtakes = self._gate is not None and self._gate.overtakes
        #: Whether barriers may overtake at either end of a channel, and the rows of the newest such checkpoint.
        self._may_overtake = deployment.settings.unaligned_checkpoints
        self._overtaken: OvertakenRows | None = None
        #: Rows whose state is being fetched or loaded; None: the operator fetches it when it processes them.
        self._waiting: WaitingRows | None = None
        #: The restore of a large table, during which rows are processed.
        self._restore: PartialRestore | None = None
        #: An element after waiting rows, with its channel; no other is read.
        self._delayed: tuple[int, StreamElement] | None = None
        self._log_scope = TaskScope(deployment, self._chain.times)
        channels = self._gate.channel_count if self._gate is not None else 0
        self._watermarks = WatermarkMerger(channels, restored_watermark(deployment))
        self._stores: tuple[KeyedState, ...] = ()
        self._pipeline = SnapshotPipeline(
            SnapshotServices(
                clock=self._clock,
                background=environment.background,
                uploader=services.uploader,
                post=self.mailbox.post,
                reports=self.reports,
                in_flight=partial(overtaken_files, deployment),
                copies=services.copies,
                encoded_at_once_bytes=environment.limits.encoded_at_once_bytes,
            )
        )
        self._barriers.give_up = self._pipeline.abort
        self._compactor = Compactor(environment.background, services.uploader, services.state_files, self.mailbox.post)
        self.metrics = SubtaskMetrics(
            self._clock, self._gate, self._outputs, self._chain, self._compactor, self._memory_budget
        )
        self._opened = self._source_suspended = self._finishing = False
        self._input_ended = self._output_ended = False
        self.has_ended = False
        self.final_state = ""
        self._pacing = SourcePacing(deployment.settings.buffer_timeout_ms, sends=bool(self._outputs))

    @property
    def metric_name(self) -> str:
        """`<vertex>/<subtask>`, as in `WorkerMetrics`."""
        return f"{self.deployment.execution.vertex_id}/{self.deployment.execution.subtask}"

    @property
    def gate(self) -> InputGate | None:
        """Return its input gate; None: it is a source."""
        return self._gate

    @property
    def is_source(self) -> bool:
        """Whether barriers begin in this subtask."""
        return self._gate is None

    @property
    def links(self) -> tuple[ChainLink, ...]:
        """The operators of its chain."""
        return self._chain.links

    @property
    def running_operator(self) -> OperatorSpec | None:
        """The operator that works now; None between two calls of operators. From any thread."""
        return self._chain.current_operator

    @property
    def has_pending_output(self) -> bool:
        """Whether it runs and will emit rows without new input."""
        waiting = self._waiting is not None and (self._waiting.delays or self._waiting.holds)
        waiting = waiting or self._delayed is not None
        return self._opened and not self.has_ended and (waiting or self._chain.has_pending_output)

    # --- calls from other threads
    # --------------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: int, kind: BarrierKind) -> None:
        """Put a barrier into the stream (sources only)."""
        self.mailbox.post(lambda: self._trigger(Barrier(checkpoint_id, kind)))

    def expect(self, checkpoint_id: int) -> None:
        """Announce a barrier: rows before it are accepted even if the sink is at its limit."""
        self.mailbox.post(lambda: self._barriers.announce(checkpoint_id), urgent=False)
        if not self._chain.available:  # asked after the post: a step that ends later finds the mail
            self._wake()

    def permit(self, checkpoint_id: int) -> None:
        """Let the barriers of a checkpoint overtake rows."""
        self.mailbox.post(lambda: self._permit(checkpoint_id))

    def complete(self, message: CheckpointCompleted) -> None:
        """Handle a durable checkpoint."""

        def notify() -> None:
            self._chain.notify_complete(message.permit, message.held)
            for store in self._stores:
                store.completed(message.permit.checkpoint_id)

        self.mailbox.post(notify, urgent=self._chain.has_unpublished)

    def abort(self, message: CheckpointAborted) -> None:
        """Handle a checkpoint that will never complete."""
        self.mailbox.post(lambda: self._abort(message.checkpoint_id))

    def pause_compaction(self, *, paused: bool) -> None:
        """Merge no segments of its state until `paused` is false."""
        self.mailbox.post(lambda: self._compactor.pause(paused=paused), urgent=False)

    def leader_changed(self) -> None:
        """Give up what a leader that has ended began: a barrier may never arrive in some channels."""
        self.mailbox.post(self._give_up)
        self.pause_compaction(paused=False)

    def run_in_mailbox(self, call: Callable[[Chain, tuple[KeyedState, ...]], None]) -> bool:
        """Call with the chain and its keyed state, in the subtask's thread, between elements; False: it has ended."""

        def called() -> None:
            self._load_rest()
            call(self._chain, self._stores)

        return self.mailbox.post(called)

    def finish(self) -> None:
        """End after the final checkpoint, which is complete and published."""
        self.mailbox.post(self._begin_finish)

    def cancel(self) -> None:
        """Stop now."""
        self.mailbox.post(lambda: self._end("CANCELED"))

    # --- the loop ----------------------------------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Do one bounded unit of work; a failure ends the subtask and is reported, never raised."""
        if self.has_ended:
            return StepResult.DONE
        logs.enter(self._log_scope)
        try:
            result = self._step()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            self._fail(error)
            return StepResult.DONE
        if self.has_ended:
            return StepResult.DONE
        if result is StepResult.BUSY:
            self.metrics.enter(BUSY)
        else:
            self.metrics.enter(IDLE if result is StepResult.IDLE else BACK_PRESSURED)
        return result

    def next_deadline_ms(self) -> float:
        """Return the time at which `step` has work even without a wake-up (monotonic)."""
        times = [self.metrics.next_publication_ms]
        times += [t for output in self._outputs if (t := output.next_deadline_ms) is not None]
        if self._pipeline.next_deadline_ms is not None:
            times.append(self._pipeline.next_deadline_ms)
        if self._gate is None and not self._input_ended and not self._source_suspended:
            times.append(self._pacing.next_ms)
        timer = self._chain.next_timer_ms
        # the output wakes the subtask when it has room again
        if timer is not None and not self._barriers.draining and self._accepts_rows():
            times.append(self._clock.monotonic_ms() + max(0.0, timer - self._clock.now_ms()))
        return min(times)

    def _step(self) -> StepResult:
        if not self._opened:
            self._open()
            return StepResult.BUSY
        mail = self.mailbox.take()
        if mail is not None:
            self.metrics.enter(BUSY)
            mail()
            return StepResult.BUSY
        now = self._clock.monotonic_ms()
        self.metrics.publish_due(now)
        for output in self._outputs:
            deadline = output.next_deadline_ms
            if deadline is not None and deadline <= now:
                output.flush_due(now)
        if self._overtakes:
            self._barriers.look()
        copied = self._pipeline.step()
        if self._finishing:
            return self._try_finish()
        if self._chain.continues and self._emit_held_rows():
            return StepResult.BUSY
        if self._barriers.draining:
            return StepResult.BUSY if self._barriers.drain_if_ready() or copied else StepResult.IDLE
        if self._input_ended and not self._output_ended and self._chain.continues:  # not after the last barrier
            self._end_input()
        loaded = self._load_part()
        moved = self._take_input(now)
        return StepResult.BUSY if copied or loaded else moved

    def _emit_held_rows(self) -> bool:
        if not all(output.available for output in self._outputs):
            return False
        last = self._input_ended or self._barriers.draining
        return self._chain.emit_ready(past_limits=last or (not self._chain.available and self._barriers.pending))

    def _take_input(self, now: float) -> StepResult:
        if self._holds_back:
            self._barriers.hold_back(limited=not self._chain.available)
        if not self._accepts_rows():
            if self._gate is None:
                self._chain.poll(backpressured=True)
                self._pacing.record_blocked(now)
            return StepResult.BACKPRESSURED
        timer = self._chain.next_timer_ms
        if timer is not None and self._restore is None and timer <= (wall := self._clock.now_ms()):
            self.metrics.enter(BUSY)
            self._chain.process_time(wall)
        if self._gate is None:
            return self._poll_source(now)
        if self._batch_sizer is not None and self._batch_sizer.waiting:
            self.metrics.enter(BUSY)
            self._batch_sizer.feed_next()
            return StepResult.BUSY
        if self._waiting and self._feed_fetched(self._waiting):
            return StepResult.BUSY
        polled = self._next_element(self._gate)
        if polled is None:
            return StepResult.IDLE
        self.metrics.enter(BUSY)
        self._process(*polled)
        return StepResult.BUSY

    def _feed_fetched(self, waiting: WaitingRows) -> bool:
        """Feed rows whose state was fetched; return whether there are any."""
        fetched = waiting.take()
        if fetched is None and self._restore is None and not self._compactor.fetches(0, self._stores[0]):
            waiting.release()
            fetched = waiting.take()
        if fetched is None:
            return False
        input_index, rows = fetched
        self.metrics.enter(BUSY)
        self._feed(rows, input_index)
        return True

    def _next_element(self, gate: InputGate) -> tuple[int, StreamElement] | None:
        """Return the next element of the input; None: there is none, or rows have to be processed before it."""
        waiting = self._waiting
        if waiting is None or not waiting.delays:
            held = None if waiting is None else waiting.take_held()
            if held is not None:
                return held
            delayed, self._delayed = self._delayed, None
            return delayed or gate.poll()
        while self._delayed is None and not waiting.full:
            polled = gate.poll()
            if polled is None or isinstance(polled[1], Batch) or self._passes_rows(polled[1]):
                return polled
            if self._restore is not None and isinstance(polled[1], Watermark | WatermarkStatus):
                waiting.hold(polled[0], polled[1])
            else:
                self._delayed = polled
        return None

    def _passes_rows(self, element: StreamElement) -> bool:
        """Return whether the element is a barrier that takes waiting rows along, or finds none."""
        if not isinstance(element, Barrier) or element.kind is not BarrierKind.CHECKPOINT:
            return False
        return self._overtakes or not self._waiting

    def _load_part(self) -> bool:
        """Load a part of a large table; return whether there was one."""
        if self._restore is None:
            return False
        self.metrics.enter(BUSY)
        self._restore.load_next()
        if self._restore.complete:
            self._restore = None
            self._start_background()
        return True

    def _start_background(self) -> None:
        """Start compactions and prefetches that are due, but none during a restore.

        A merged segment would let retention delete files that the restore has still to read.
        """
        if self._restore is None:
            self._compactor.start_due(self._stores)

    def _load_rest(self) -> None:
        while self._load_part():
            pass

    def _accepts_rows(self) -> bool:
        if not all(output.available for output in self._outputs):
            return False
        if not self._chain.available:
            # A sink at its limit accepts no rows, but barriers must pass; an operator that holds rows emits some first.
            delayed = self._delayed is not None and isinstance(self._delayed[1], Barrier)
            return (self._barriers.pending or delayed) and not self._chain.holding
        # Frozen pages count: while a snapshot exceeds the budget, further writes would only copy more of them.
        held = self._memory_budget.used_bytes + self._pipeline.memory_bytes if self._pipeline.busy else 0
        return held <= self._memory_budget.limit_bytes

    def _poll_source(self, now: float) -> StepResult:
        if self._source_suspended or self._input_ended:
            return StepResult.IDLE
        link = self._chain.links[0]
        source = link.source
        if source.finished:
            self._end_input()
            return StepResult.BUSY
        if self._pacing.is_too_early(now):
            return StepResult.IDLE
        self.metrics.enter(BUSY)
        before = link.records_out
        room = min((rows for output in self._outputs if (rows := output.room_rows) is not None), default=None)
        if poll(self._chain, self._poll_limit, self._clock, room) or source.finished:
            self._pacing.record_rows(now, link.records_out - before, drained=source.drained)
            return StepResult.BUSY
        self._pacing.record_empty_poll(now)
        return StepResult.IDLE

    def _process(self, channel: int, element: StreamElement) -> None:
        assert self._gate is not None  # noqa: S101 - elements come from a gate
        match element:
            case Batch():
                input_index = self._gate.input_index_of(channel)
                rows = element if self._waiting is None else self._waiting.split(element, input_index)
                if rows is not None:
                    self._feed(rows, input_index)
            case Watermark():
                self._advance(self._watermarks.update(channel, element.timestamp))
            case WatermarkStatus():
                self._change_status(channel, idle=element.idle)
            case Barrier():
                self._barriers.on_barrier(channel, element)
            case EndOfInput():
                self._change_status(channel, idle=False)
                self._advance(self._watermarks.update(channel, MAX_TIMESTAMP))
                self._barriers.on_end_of_input(channel)
                if self._barriers.alignment.all_ended and not self._input_ended:
                    self._end_input()

    def _feed(self, rows: Batch, input_index: int) -> None:
        if self._batch_sizer is None:
            self._chain.batch(rows, input_index)
        else:
            self._batch_sizer.feed(rows, input_index)

    def _advance(self, watermark: int | None) -> None:
        if watermark is not None:
            self._chain.watermark(Watermark(watermark))
            self.metrics.input_watermark = watermark

    def _change_status(self, channel: int, *, idle: bool) -> None:
        change = self._watermarks.status(channel, idle=idle)
        self._advance(change.watermark)
        if change.idle is not None:
            self._chain.status(WatermarkStatus(change.idle))

    def _end_input(self) -> None:
        """Emit the rest after all rows and the final watermark; report the end once no work is pending."""
        self._input_ended = True
        self._output_ended = self._chain.finish()
        if self._output_ended:
            for output in self._outputs:
                output.end()
            self.reports.input_ended()

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _trigger(self, barrier: Barrier) -> None:
        if self._gate is not None:
            return
        if barrier.kind.ends_job and not self._source_suspended:
            self._source_suspended = True
            self._chain.links[0].source.suspend()
            if barrier.kind is BarrierKind.DRAIN and not self._input_ended:
                self._chain.emit_watermark(Watermark(MAX_TIMESTAMP))
        self._barriers.begin(barrier)

    def _permit(self, checkpoint_id: int) -> None:
        self._barriers.permit(checkpoint_id)
        overtaken = self._overtaken
        if overtaken is not None and overtaken.checkpoint_id == checkpoint_id and not overtaken.complete:
            overtaken.unaligned = True
            for output in self._outputs:
                output.overtake_late(overtaken)

    def _overtake(self, barrier: Barrier, aligned: Aligned, passed: frozenset[int]) -> OvertakenRows:
        """Take a snapshot before the rows that the barriers overtake, which become part of it."""
        assert self._gate is not None  # noqa: S101 - barriers overtake in a gate
        overtaken = OvertakenRows(barrier.checkpoint_id)
        self._gate.overtake(overtaken, passed, self._unprocessed)
        self._take_snapshot(barrier, aligned, overtaken)
        return overtaken

    @property
    def _unprocessed(self) -> tuple[tuple[int, Batch], ...]:
        """The rows that were read but not processed, each batch with its input; those of one key in their order."""
        unfed = () if self._batch_sizer is None else self._batch_sizer.unfed
        waiting = () if self._waiting is None else self._waiting.batches
        return (*unfed, *waiting)

    def _take_snapshot(self, barrier: Barrier, aligned: Aligned, overtaken: OvertakenRows | None = None) -> None:
        """Freeze, send the barrier on, pass the rest to the pipeline."""
        if self._overtaken is not None and not self._overtaken.complete:
            # Its leader has given it up, and may have ended before it could say so.
            self._pipeline.abort(self._overtaken.checkpoint_id)
        overtakes = barrier.checkpoint_id == self._barriers.permitted
        if overtaken is None and self._may_overtake and barrier.kind is BarrierKind.CHECKPOINT:
            overtaken = OvertakenRows(barrier.checkpoint_id)
            if self._gate is not None:
                self._gate.collect(overtaken, self._unprocessed)
        self._overtaken = overtaken
        begun = self._clock.monotonic_ms()
        taken: tuple[OperatorSnapshot, ...] = self._chain.snapshot(barrier)
        # after the snapshot, which may emit rows that belong before the barrier
        counts = self.metrics.at_barrier(sum(rows.num_rows for _, rows in self._unprocessed))
        self._send_on(barrier, overtaken, overtakes=overtakes)
        task_states = (
            input_watermark_state(self.deployment, self._watermarks.combined) if self._gate is not None else ()
        )
        self._pipeline.start(
            SubtaskCheckpoint(
                barrier=barrier,
                taken=tuple(zip((link.capabilities.publishing for link in self._chain.links), taken, strict=True)),
                task_states=task_states,
                finished=self._output_ended,
                aligned=aligned,
                sync_ms=self._clock.monotonic_ms() - begun,
                begun_ms=begun,
                counts=counts,
                overtaken=overtaken,
            )
        )
        self._start_background()

    def _send_on(self, barrier: Barrier, overtaken: OvertakenRows | None, *, overtakes: bool) -> None:
        if overtaken is not None:
            overtaken.unaligned = overtakes
        for output in self._outputs:
            if overtaken is None:
                output.barrier(barrier)
            elif overtakes:
                output.overtake(barrier, overtaken)
            else:
                output.barrier_in_order(barrier, overtaken, self._wake)

    def _abort(self, checkpoint_id: int) -> None:
        self._barriers.on_abort(checkpoint_id)
        self._pipeline.abort(checkpoint_id)
        self._chain.notify_aborted(checkpoint_id)

    def _give_up(self) -> None:
        """Abort checkpoints that wait for barriers: channels would be blocked, or rows kept, until the next one."""
        for checkpoint_id in self._barriers.alignment.waiting:
            self._abort(checkpoint_id)
        if self._overtaken is not None and not self._overtaken.complete:
            self._abort(self._overtaken.checkpoint_id)

    # --- begin and end -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.reports.state("INITIALIZING")
        self._opened = True
        services = ChainServices(
            wake=self._wake,
            run_async=self._run_async,
            run_waiting=self._run_waiting,
            report_published=self.reports.published,
            read_file=self._services.read_file,
            read_state=self._services.state_files.read,
            budget=self._memory_budget,
        )
        self._stores = open_chain(self._chain, self.deployment, self._environment, services, self._services.prepared)
        combine_outputs(self._outputs, self.deployment.settings)
        expect_combined(self._gate, self._chain.links[0])
        restores = [store.restore for store in self._stores if store.restore is not None]
        self._restore = next((restore for restore in restores if not restore.complete), None)
        self._start_background()
        if self._overtakes or self._restore is not None:
            self._waiting = WaitingRows.of(self._chain.links[0], self._environment.limits.waiting_bytes)
            self.metrics.waiting = self._waiting
        if self._gate is not None and self.deployment.in_flight:
            self._gate.restore(restored_rows(self.deployment, self._services.state_files.read))
        if self._gate is not None and self._watermarks.combined > MIN_TIMESTAMP:
            # Emit the checkpoint's watermark, so that lateness is decided as before.
            self.metrics.input_watermark = self._watermarks.combined
            self._chain.watermark(Watermark(self._watermarks.combined))
        self.reports.state("RUNNING")

    def _begin_finish(self) -> None:
        self._finishing = True

    def _try_finish(self) -> StepResult:
        if self._chain.publishing or self._pipeline.busy:
            return StepResult.IDLE
        self._end("FINISHED")
        return StepResult.DONE

    def _fail(self, error: BaseException) -> None:
        shown = self.deployment.settings.show_values_in_errors
        line, detail = describe(error, self._chain.current_operator, show_values=shown)
        logging.getLogger(__name__).error("subtask %s failed: %s", self.metric_name, detail or line)
        self._end("FAILED", line, detail)

    def _end(self, state: str, error: str = "", detail: str = "") -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self.final_state = state
        self.mailbox.close()
        last = (self.metrics.publish(), self.metrics.texts) if state in ("FINISHED", "FAILED") else None
        failures = self._chain.close() + close_stores(self._stores)
        if failures and state != "FAILED":
            # No output can be lost (all is published or will be replayed), but the error must be reported.
            shown = self.deployment.settings.show_values_in_errors
            error, detail = describe(failures[0], show_values=shown)
            error = f"while closing: {error}"
        self.reports.state(state, error, detail, last)

    def _run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], what: str) -> None:
        work = self._environment.slow_calls.watched(self.deployment.job_id, what, work)
        self._environment.blocking.submit(work, lambda result, error: self.mailbox.post(lambda: done(result, error)))

    def _run_waiting(self, work: Callable[[], Any], what: str) -> Any:
        return self._environment.slow_calls.watched(self.deployment.job_id, what, work)()
