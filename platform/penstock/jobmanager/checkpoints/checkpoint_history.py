"""Keeps the last hundred checkpoints and the totals up to the restored one for display; no decision depends on it.

Filled by `jobmanager.checkpoints.checkpointing` and `jobmanager.master.job_master`, read by
`jobmanager.jobs.job_views`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from penstock.checkpoint.coordinator import Ack, PendingCheckpoint
from penstock.checkpoint.manifest_log import Manifest
from penstock.graph.task_deployment import ExecutionId
from penstock.jobmanager.messages.views import CheckpointsView, CheckpointView, RestoredView, SubtaskCheckpointView

LIMIT = 100
#: Totals by vertex: counter -> count.
Totals = dict[str, Counter[str]]


@dataclass(slots=True)
class _Record:
    checkpoint_id: int
    kind: str
    trigger_ms: int
    total: int
    acks: dict[ExecutionId, Ack] = field(default_factory=dict)
    status: str = "IN_PROGRESS"
    end_ms: int = -1
    failure: str = ""
    sequence: int | None = None
    path: str = ""
    #: Whether its copy is a native savepoint.
    native: bool = False
    #: Number of objects written for it, including the manifest.
    objects: int = 0
    #: Totals up to the checkpoint that its attempt restored.
    before: Totals = field(default_factory=dict)
    #: The view of an ended checkpoint; None until it is asked for, or after a change.
    shown: CheckpointView | None = None

    def totals(self) -> Totals:
        """Return the totals up to this checkpoint."""
        found = {vertex_id: Counter(counts) for vertex_id, counts in self.before.items()}
        for execution, ack in self.acks.items():
            found.setdefault(execution.vertex_id, Counter()).update(ack.metrics.counts)
        return found

    def paths(self) -> set[str]:
        """Return the objects that its acks refer to."""
        files = [s.file for ack in self.acks.values() for state in ack.snapshot.keyed for s in state.segments]
        files += [rows.file for ack in self.acks.values() for rows in ack.snapshot.in_flight]
        files += [
            f for ack in self.acks.values() for uncommitted in ack.snapshot.committables for f in uncommitted.files
        ]
        return {file.path for file in files if file.path}

    def view(self) -> CheckpointView:
        """Return the record as a view; clients ask often, so that of an ended checkpoint is made once."""
        if self.status == "IN_PROGRESS":
            return self._made_view()
        if self.shown is None:
            self.shown = self._made_view()
        return self.shown

    def _made_view(self) -> CheckpointView:
        return CheckpointView(
            id=self.checkpoint_id,
            kind=self.kind,
            status=self.status,
            trigger_ms=self.trigger_ms,
            end_ms=self.end_ms,
            duration_ms=self.end_ms - self.trigger_ms if self.end_ms >= 0 else -1,
            acknowledged=len(self.acks),
            total=self.total,
            state_bytes=sum(ack.metrics.state_bytes for ack in self.acks.values()),
            new_bytes=sum(ack.metrics.new_bytes for ack in self.acks.values()),
            failure=self.failure,
            sequence=self.sequence,
            path=self.path,
            native=self.native,
            objects=self.objects,
            processed_bytes=sum(ack.metrics.processed_bytes for ack in self.acks.values()),
            buffered_bytes=sum(ack.metrics.buffered_bytes for ack in self.acks.values()),
            persisted_bytes=sum(ack.metrics.persisted_bytes for ack in self.acks.values()),
            unaligned=any(ack.metrics.unaligned for ack in self.acks.values()),
            max_sync_ms=max((ack.metrics.sync_ms for ack in self.acks.values()), default=0.0),
            subtasks=tuple(
                SubtaskCheckpointView(
                    vertex_id=execution.vertex_id,
                    subtask=execution.subtask,
                    ack_ms=ack.at_ms,
                    state_bytes=ack.metrics.state_bytes,
                    new_bytes=ack.metrics.new_bytes,
                    alignment_ms=ack.metrics.alignment_ms,
                    sync_ms=ack.metrics.sync_ms,
                    async_ms=ack.metrics.async_ms,
                    processed_bytes=ack.metrics.processed_bytes,
                    buffered_bytes=ack.metrics.buffered_bytes,
                    persisted_bytes=ack.metrics.persisted_bytes,
                    unaligned=ack.metrics.unaligned,
                )
                for execution, ack in sorted(self.acks.items())
            ),
        )


class CheckpointHistory:
    """Counts of all checkpoints, details of the last hundred."""

    def __init__(self) -> None:
        """Start empty."""
        self._records: deque[_Record] = deque(maxlen=LIMIT)
        #: Those that are complete or failed, in the order of their ends.
        self._ended: deque[_Record] = deque(maxlen=LIMIT)
        self.completed = 0
        self.failed = 0
        self.restored = 0
        self.latest_restored: RestoredView | None = None
        self.latest_id: int | None = None
        #: Totals up to the restored checkpoint; from the job's begin, or from that of this leader.
        self.totals: Totals = {}
        #: The checkpoint that the job or a part of it was restored from last.
        self._restored_from: _Record | None = None
        self._latest: dict[str, CheckpointView] = {}
        self._latest_completed: _Record | None = None
        #: Objects that the newest checkpoint references.
        self._paths: set[str] = set()

    def triggered(self, pending: PendingCheckpoint) -> None:
        """Record the start of a checkpoint."""
        record = _Record(pending.checkpoint_id, pending.label, pending.triggered_ms, len(pending.expected))
        # Shared with the coordinator, so acks show as they arrive.
        record.acks = pending.acks
        record.before = self.totals
        self._records.append(record)

    def appended(self, checkpoint_id: int, sequence: int, path: str, now_ms: int) -> None:
        """Record a completed checkpoint; its deployment may have ended meanwhile."""
        record = self._find(checkpoint_id)
        if record is None or record.status != "IN_PROGRESS":
            return
        record.status, record.end_ms, record.sequence, record.path = "COMPLETED", now_ms, sequence, path
        self._ended.append(record)
        paths = record.paths()
        record.objects = len(paths - self._paths) + 1
        self._paths = paths
        self.completed += 1
        if record.kind == "savepoint":
            self._latest["savepoint"] = record.view()
        else:  # its view is made when it is asked for: there are many
            self._latest_completed, self.latest_id = record, checkpoint_id

    def saved(self, checkpoint_id: int, uri: str, *, native: bool = False) -> None:
        """Record that the checkpoint's self-contained copy was written."""
        record = self._find(checkpoint_id)
        if record is not None:
            record.path, record.native, record.shown = uri, native, None
            self._latest["savepoint"] = record.view()

    def aborted(self, checkpoint_id: int, reason: str, now_ms: int) -> None:
        """Record an aborted checkpoint."""
        record = self._find(checkpoint_id)
        if record is None or record.status != "IN_PROGRESS":
            return
        record.status, record.end_ms, record.failure = "FAILED", now_ms, reason
        self._ended.append(record)
        self.failed += 1
        self._latest["failed"] = record.view()

    def was_restored(
        self, manifest: Manifest, now_ms: int, *, savepoint: bool, vertices: Collection[str] | None = None
    ) -> None:
        """Record a restore of these vertices, or of all.

        `savepoint` if a user started the job from a savepoint, else that of a stop is named.
        """
        self.restored += 1
        taken_id = manifest.checkpoint_id or 0
        record = self._find(taken_id)
        if record is not None:
            totals = record.totals()
            kept = {} if vertices is None else {name: n for name, n in self.totals.items() if name not in vertices}
            own = totals if vertices is None else {name: n for name, n in totals.items() if name in vertices}
            self.totals, self._restored_from = kept | own, record
        uri = "" if savepoint else manifest.savepoint_uri
        self.latest_restored = RestoredView(
            checkpoint_id=taken_id,
            restored_ms=now_ms,
            taken_ms=manifest.created_ms,
            savepoint=savepoint or bool(uri),
            uri=uri,
        )
        if self.latest_id is None:
            self.latest_id = taken_id

    @property
    def newest_totals(self) -> Totals:
        """The totals up to the newest completed checkpoint since the last restore, or up to the restored one."""
        newest = next((record for record in reversed(self._records) if record.status == "COMPLETED"), None)
        if newest is not None and (newest.before is self.totals or newest is self._restored_from):
            return newest.totals()
        return self.totals

    @property
    def last_failure(self) -> str:
        """The newest checkpoint failure as text; empty if there is none."""
        failed = self._latest.get("failed")
        return f"{failed.kind} {failed.id}: {failed.failure}" if failed is not None else ""

    def ended(self, count: int) -> tuple[CheckpointView, ...]:
        """Return the last `count` completed or failed checkpoints, in the order of their ends."""
        return tuple(record.view() for record in tuple(self._ended)[max(0, len(self._ended) - count) :])

    def view(self, pending: tuple[int, int, int]) -> CheckpointsView:
        """Return the history as a view; `pending` is count, rows and bytes of output not known to be published."""
        return CheckpointsView(
            completed=self.completed,
            failed=self.failed,
            in_progress=sum(record.status == "IN_PROGRESS" for record in self._records),
            restored=self.restored,
            history=tuple(record.view() for record in reversed(self._records)),
            latest_completed=None if self._latest_completed is None else self._latest_completed.view(),
            latest_savepoint=self._latest.get("savepoint"),
            latest_failed=self._latest.get("failed"),
            latest_restored=self.latest_restored,
            pending_count=pending[0],
            pending_rows=pending[1],
            pending_bytes=pending[2],
        )

    def _find(self, checkpoint_id: int) -> _Record | None:
        return next((r for r in reversed(self._records) if r.checkpoint_id == checkpoint_id), None)
