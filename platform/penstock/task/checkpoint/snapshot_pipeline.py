"""The snapshots of one subtask from barrier to ack, one after another.

The synchronous part (freezing operators) is done when a `SubtaskCheckpoint` is passed in. Then frozen pages are copied
in steps between batches; large parts are encoded and uploaded in the background; in the subtask's thread the files are
assigned to states and sinks, and the ack is sent. Checkpoints are completed strictly in order, so an ack is only sent
when every earlier segment of the log is durable. A failed upload is repeated, up to a limit of count and time; then the
checkpoint is declined, and its segments and staged output are offered again for the next checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoint.local_copies import LocalCopies
from penstock.core import failpoints
from penstock.core.clock import Clock
from penstock.core.elements import Barrier
from penstock.core.snapshot import (
    CheckpointMetrics,
    Committable,
    FileRef,
    InFlightRows,
    OperatorStateSnapshot,
    SubtaskSnapshot,
)
from penstock.network.in_flight import OvertakenRows, QueuedRows, encode_rows
from penstock.operators.operator import OperatorSnapshot, PublishingOperator, StagedOutput
from penstock.rpc.messages import CheckpointAck
from penstock.state.log.frozen import FrozenTable
from penstock.state.log.segments import EncodedSegment
from penstock.task.chain.background import Background, Mail
from penstock.task.chain.environment import TaskReports
from penstock.task.chain.uploader import Part, Uploader
from penstock.task.checkpoint.barriers import Aligned

#: Frozen pages copied between two batches (4096 slots each): about a millisecond.
PAGES_PER_STEP = 16
MAX_ATTEMPTS = 4
MAX_RETRY_MS = 30_000.0
_FIRST_RETRY_MS = 100.0
#: A subtask's rows in flight travel in the ack if they are fewer bytes: a wide edge has many small files.
INLINE_IN_FLIGHT_BYTES = 32 << 10


@dataclass(slots=True)
class SubtaskCheckpoint:
    """One checkpoint in this subtask, from freeze to ack."""

    barrier: Barrier
    #: (sink, its synchronous part), in chain order; operators that stage no output are None.
    taken: tuple[tuple[PublishingOperator | None, OperatorSnapshot], ...]
    #: States of the task (the input's watermark).
    task_states: tuple[OperatorStateSnapshot, ...]
    finished: bool
    aligned: Aligned
    sync_ms: float
    begun_ms: float
    #: See `CheckpointMetrics.counts`.
    counts: dict[str, int] = field(default_factory=dict)
    aborted: bool = False
    uncopied: deque[FrozenTable] = field(default_factory=deque)
    #: Rows that the barriers overtake; None if they stay in order.
    overtaken: OvertakenRows | None = None

    @property
    def ready(self) -> bool:
        """Whether its files can be written: pages are copied, and all barriers have arrived."""
        return not self.uncopied and (self.overtaken is None or self.overtaken.complete)

    @property
    def frozen(self) -> tuple[FrozenTable, ...]:
        """All frozen states."""
        return tuple(state for _, snapshot in self.taken for state in snapshot.keyed)


@dataclass(slots=True)
class _Upload:
    """The files of the first checkpoint in order; kept until durable, so that they can be written again."""

    #: (frozen state, its segments) and (sink, staged output without the chunks already written, their bytes).
    segments: tuple[tuple[FrozenTable, tuple[EncodedSegment, ...]], ...]
    staged: tuple[tuple[PublishingOperator | None, StagedOutput, tuple[bytes, ...]], ...]
    #: Rows in flight, without their files, and the bytes of these.
    in_flight: tuple[tuple[InFlightRows, bytes], ...]
    attempts: int = 0
    first_failure_ms: float | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts, in the order of the references."""
        state = tuple(Part(segment.data) for _, segments in self.segments for segment in segments)
        staged = tuple(Part(chunk, "pending") for _, _, chunks in self.staged for chunk in chunks)
        small = sum(len(data) for _, data in self.in_flight) < INLINE_IN_FLIGHT_BYTES
        return state + staged + tuple(Part(data, "channels", inline=small) for _, data in self.in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotServices:
    """The services of the subtask for the pipeline."""

    clock: Clock
    background: Background
    uploader: Uploader
    #: Runs a mail in the subtask's thread.
    post: Callable[[Mail], object]
    reports: TaskReports
    #: Describes the rows of each file of overtaken rows.
    in_flight: Callable[[OvertakenRows], tuple[tuple[InFlightRows, list[QueuedRows]], ...]]
    copies: LocalCopies
    #: See `StateLimits`.
    encoded_at_once_bytes: int


class SnapshotPipeline:
    """Owned and called by one subtask, in its thread."""

    def __init__(self, services: SnapshotServices) -> None:
        """Start without checkpoints."""
        self._services = services
        self._checkpoints: deque[SubtaskCheckpoint] = deque()
        self._upload: _Upload | None = None
        self._encoding = False
        self._retry_at_ms: float | None = None
        #: Staged output written for an earlier checkpoint that a later one also offered.
        self._written: dict[str, Committable] = {}
        self.last_durable_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether a checkpoint waits for its ack."""
        return bool(self._checkpoints)

    @property
    def next_deadline_ms(self) -> float | None:
        """Return when a failed upload is repeated."""
        return self._retry_at_ms

    @property
    def memory_bytes(self) -> int:
        """Bytes held by frozen states."""
        return sum(state.memory_bytes for checkpoint in self._checkpoints for state in checkpoint.frozen)

    def start(self, checkpoint: SubtaskCheckpoint) -> None:
        """Add a checkpoint whose synchronous part is done."""
        checkpoint.uncopied.extend(checkpoint.frozen)
        self._checkpoints.append(checkpoint)

    def abort(self, checkpoint_id: int) -> None:
        """Send no ack for a checkpoint that will never complete; segments of the log are still written."""
        for checkpoint in self._checkpoints:
            if checkpoint.barrier.checkpoint_id == checkpoint_id:
                checkpoint.aborted = True
                if checkpoint.overtaken is not None:
                    checkpoint.overtaken.cancel()

    def step(self) -> bool:
        """Copy some pages, or start the work that is due; return whether any was done (call again soon)."""
        # Pages of all checkpoints, not only the first: an uncopied page is copied at its next write.
        for checkpoint in self._checkpoints:
            while checkpoint.uncopied:
                if not checkpoint.uncopied[0].copy_pages(PAGES_PER_STEP):
                    return True
                checkpoint.uncopied.popleft()
        if self._retry_at_ms is not None and self._services.clock.monotonic_ms() >= self._retry_at_ms:
            self._retry_at_ms = None
            self._write()
            return True
        if self._checkpoints and self._upload is None and not self._encoding and self._checkpoints[0].ready:
            self._encode(self._checkpoints[0])
            return True
        return False

    def _encode(self, checkpoint: SubtaskCheckpoint) -> None:
        staged = [
            (sink, output)
            for sink, snapshot in checkpoint.taken
            for output in snapshot.staged
            if output.committable.id not in self._written
        ]
        overtaken = () if checkpoint.overtaken is None else self._services.in_flight(checkpoint.overtaken)
        if not checkpoint.frozen and not staged and not overtaken:
            self._complete(checkpoint, set())
            return
        self._encoding = True

        def work() -> _Upload:
            return _Upload(
                tuple((state, state.encode()) for state in checkpoint.frozen),
                tuple((sink, output, tuple(make() for make in output.chunks)) for sink, output in staged),
                tuple((part, encode_rows(rows)) for part, rows in overtaken),
            )

        services, size = self._services, sum(output.committable.size_bytes for _, output in staged)
        size += sum(state.memory_bytes for state in checkpoint.frozen)
        if size <= services.encoded_at_once_bytes and not overtaken:
            self._on_encoded(work(), None)
            return
        services.background.submit(work, lambda upload, error: services.post(lambda: self._on_encoded(upload, error)))

    def _on_encoded(self, upload: _Upload | None, error: BaseException | None) -> None:
        self._encoding = False
        if upload is None:
            # Encoding is engine code on local memory: an error in it fails the task.
            raise error or RuntimeError("encoding gave nothing")
        self._upload = upload
        overtaken = self._checkpoints[0].overtaken
        if overtaken is not None:
            overtaken.release()
        self._write()

    def _write(self) -> None:
        assert self._upload is not None  # noqa: S101 - only called with a running upload
        upload = self._upload
        upload.attempts += 1
        self._services.uploader.write(
            upload.parts, lambda refs, error: self._services.post(lambda: self._on_written(upload, refs, error))
        )

    def _on_written(self, upload: _Upload, refs: tuple[FileRef, ...] | None, error: BaseException | None) -> None:
        if refs is None:
            self._failed(upload, error)
            return
        self._upload = None
        remaining = iter(refs)
        for state, segments in upload.segments:
            state.durable({segment.position: next(remaining) for segment in segments})
        for sink, output, chunks in upload.staged:
            files = tuple(next(remaining) for _ in chunks)
            filled = msgspec.structs.replace(
                output.committable, files=files, size_bytes=sum(ref.length for ref in files)
            )
            self._written[filled.id] = filled
            assert sink is not None  # noqa: S101 - an operator that stages output declares it
            sink.staged_written(filled)
        in_flight = tuple(msgspec.structs.replace(part, file=next(remaining)) for part, _ in upload.in_flight)
        self.last_durable_bytes = sum(ref.length for ref in refs)
        self._complete(self._checkpoints[0], {ref.path for ref in refs}, in_flight)

    def _failed(self, upload: _Upload, error: BaseException | None) -> None:
        now = self._services.clock.monotonic_ms()
        if isinstance(error, failpoints.FailpointError):
            raise error
        if upload.first_failure_ms is None:
            upload.first_failure_ms = now
        delay = _FIRST_RETRY_MS * 4 ** (upload.attempts - 1)
        in_time = now + delay - upload.first_failure_ms <= MAX_RETRY_MS
        if upload.attempts < MAX_ATTEMPTS and in_time:
            self._retry_at_ms = now + delay
            return
        self._upload = None  # its segments stay in their logs, and the next freeze offers them again
        checkpoint = self._checkpoints.popleft()
        if not checkpoint.aborted:
            self._services.reports.declined(
                checkpoint.barrier.checkpoint_id,
                f"its files could not be written in {upload.attempts} attempts: {error}",
            )

    def _complete(
        self, checkpoint: SubtaskCheckpoint, paths: set[str], in_flight: tuple[InFlightRows, ...] = ()
    ) -> None:
        self._checkpoints.popleft()
        committables = self._committables(checkpoint)
        still_offered = {
            output.committable.id for later in self._checkpoints for _, s in later.taken for output in s.staged
        }
        self._written = {key: value for key, value in self._written.items() if key in still_offered}
        if checkpoint.aborted:
            return
        services = self._services
        deployment = services.reports.deployment
        execution = deployment.execution
        keyed = tuple(state.snapshot() for state in checkpoint.frozen)
        snapshot = SubtaskSnapshot(
            vertex_id=execution.vertex_id,
            subtask=execution.subtask,
            keyed=keyed,
            operator=checkpoint.task_states + tuple(state for _, taken in checkpoint.taken for state in taken.operator),
            committables=committables,
            in_flight=in_flight,
            finished=checkpoint.finished,
        )
        metrics = CheckpointMetrics(
            alignment_ms=checkpoint.aligned.ms,
            sync_ms=checkpoint.sync_ms,
            async_ms=services.clock.monotonic_ms() - checkpoint.begun_ms,
            state_bytes=sum(segment.file.length for state in keyed for segment in state.segments),
            new_bytes=self.last_durable_bytes if paths else 0,
            processed_bytes=checkpoint.aligned.processed_bytes,
            buffered_bytes=checkpoint.aligned.buffered_bytes,
            persisted_bytes=sum(part.file.length for part in in_flight),
            unaligned=checkpoint.overtaken is not None and checkpoint.overtaken.unaligned,
            counts=checkpoint.counts,
        )
        ack = CheckpointAck(
            run_id=deployment.run_id,
            generation=deployment.generation,
            checkpoint_id=checkpoint.barrier.checkpoint_id,
            attempt=execution.attempt,
            snapshot=snapshot,
            metrics=metrics,
        )
        evidence = {"checkpoint": ack.checkpoint_id, "subtask": execution}
        failpoints.hit("task.before_ack", **evidence)
        services.copies.acknowledged(ack.checkpoint_id, snapshot)
        services.reports.send(ack)
        failpoints.hit("task.after_ack", **evidence)

    def _committables(self, checkpoint: SubtaskCheckpoint) -> tuple[Committable, ...]:
        """Return all uncommitted output of the checkpoint: durable before it, or written since."""
        uncommitted = [committable for _, taken in checkpoint.taken for committable in taken.committables]
        uncommitted += [
            self._written[output.committable.id] for _, taken in checkpoint.taken for output in taken.staged
        ]
        return tuple(
            sorted(uncommitted, key=lambda committable: (committable.uid, committable.checkpoint_id, committable.id))
        )
