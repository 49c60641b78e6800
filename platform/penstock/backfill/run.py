"""`penstock backfill`: plans a job's stages, has an engine run them, and writes the resulting savepoint.

The manifest is written last: before that there is no savepoint, and existing files belong to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.backfill.combining import combined_edge, layout_of
from penstock.backfill.engine import Engine, Progress
from penstock.backfill.histories import HistoryBounds, TableHistory, histories
from penstock.backfill.qualify import require_qualified
from penstock.backfill.stages import (
    Stage,
    TaskResult,
    parts_of,
    places_of,
    source_snapshots,
    watermark_after,
    with_event_time,
)
from penstock.backfill.task import CHECKPOINT_ID
from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.core.rand import Rand
from penstock.core.snapshot import SubtaskSnapshot
from penstock.eventtime.strategy import strategy_from_builtins
from penstock.graph.job_graph import JobGraph, JobVertex
from penstock.snapshots.access.opening import open_target, publish, reserve
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

#: Approximate rows of one part, if a split may be read in parts.
PIECE_ROWS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The user's options."""

    #: The savepoint's folder, which has to be empty.
    target: str
    #: See `connector.source.HistoryFactory`.
    until: dict[str, Any] = field(default_factory=dict)
    #: Tables with the first part of the sources' history, and where the sources take over; see `histories`.
    tables: tuple[TableHistory, ...] = ()
    cut_over: dict[str, Any] = field(default_factory=dict)
    #: Number of key ranges, each the work of one task.
    parts: int = 16
    #: uids of operators that the user accepts although they do not qualify.
    accept: tuple[str, ...] = ()
    piece_rows: int = PIECE_ROWS
    #: Memory for state in one task.
    memory_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillResult:
    """The result of a backfill."""

    uri: str
    run_id: str
    rows_read: int
    rows_staged: int
    #: Rows that operators dropped as late.
    rows_late: int
    #: Microseconds, of the slowest source; None: one has no watermark, and no window that waits for it has fired.
    watermark: int | None
    #: uid of a source -> split id -> position, in the connector's form.
    positions: dict[str, dict[str, Any]]
    #: uid of a source -> split id -> its offsets from a table: first, and one after the last.
    tables: dict[str, dict[str, tuple[int, int]]]
    #: uid of a source -> its tables, those of Iceberg with the snapshots that were read.
    histories: dict[str, tuple[str, ...]]


class Backfill:
    """One backfill of one job."""

    def __init__(self, graph: JobGraph, options: BackfillOptions, clock: Clock, rand: Rand) -> None:
        """Check all that is possible before anything is read.

        Raises:
            UsageError: an operator does not qualify, a source has no history, a table does not fit or leaves a gap, or
            the target is not empty.
        """
        require_qualified(graph, options.accept)
        self._graph, self._options, self._clock = graph, options, clock
        self._target = open_target(options.target)
        self.run_id = f"backfill-{rand.token(12)}"
        self._parts = {v.id: parts_of(v, options.parts, graph.settings.key_groups) for v in graph.vertices}
        bounds = HistoryBounds(until=options.until, cut_over=options.cut_over, piece_rows=options.piece_rows)
        self._histories = histories(graph, bounds, options.tables)
        self._watermarks: dict[str, int] = {}

    def run(self, engine: Engine, progress: Progress) -> BackfillResult:
        """Run all stages, then write the manifest.

        Raises:
            PenstockError: a task failed; there is no savepoint then.
            UsageError: another backfill writes to the target.
            StorageError: the written files were removed meanwhile.
        """
        reserve(self._target, self.run_id)
        subtasks: list[SubtaskSnapshot] = []
        read = late = 0
        for vertex in self._graph.vertices:
            stage = self._stage(vertex)
            results = engine.run(stage, progress)
            if [result.part for result in results] != list(range(stage.parts)):
                msg = f"stage {vertex.name!r} gave the results of {len(results)} of {stage.parts} tasks"
                raise UsageError(msg, hint="this is a bug in penstock: report it")
            subtasks += self._finish(stage, results)
            read += sum(result.rows_in for result in results) if vertex.is_source else 0
            late += sum(result.late for result in results)
        remove_unreferenced(self._target, self.run_id, subtasks)
        return publish(self._target, self.run_id, lambda: self._write(tuple(subtasks), read, late))

    def _stage(self, vertex: JobVertex) -> Stage:
        graph = self._graph
        inputs, outputs = graph.in_edges(vertex.id), graph.out_edges(vertex.id)
        places = places_of(graph, inputs)
        first = {other.id: other.operators[0] for other in graph.vertices}
        inputs, outputs = (
            tuple(combined_edge(edge, first[edge.target]) for edge in edges) for edges in (inputs, outputs)
        )
        pieces = self._histories[vertex.id].pieces if vertex.is_source else ()
        settings = graph.settings
        if settings.state_backend == "remote":
            settings = msgspec.structs.replace(settings, state_backend="hashmap")
        return Stage(
            job_name=graph.name,
            run_id=self.run_id,
            vertex=vertex,
            parts=len(pieces) if vertex.is_source else self._parts[vertex.id],
            key_groups=settings.key_groups,
            inputs=inputs,
            outputs=outputs,
            places=places,
            targets=tuple(self._parts[edge.target] for edge in outputs),
            settings=msgspec.json.encode(settings),
            target_uri=self._target.uri,
            watermark=min((self._watermarks[edge.source] for edge in inputs), default=MIN_TIMESTAMP),
            pieces=pieces,
            accepted=self._options.accept,
            combined=tuple(layout_of(edge, settings) for edge in outputs),
            combined_inputs=tuple(layout_of(edge, settings) for edge in inputs),
            memory_bytes=self._options.memory_bytes,
            python_path=settings.python_path,
        )

    def _finish(self, stage: Stage, results: Sequence[TaskResult]) -> list[SubtaskSnapshot]:
        """Record the event time after a stage; return its subtasks in the form of the savepoint."""
        if not stage.vertex.is_source:
            counted = with_event_time(stage, results)
            self._watermarks[stage.vertex.id] = watermark_after(counted, quiet_are_idle=False)
            return [result.snapshot for result in counted]
        quiet = _quiet_are_idle(stage.vertex)
        by_split = source_snapshots(stage, self._histories[stage.vertex.id].splits, results, quiet_are_idle=quiet)
        self._watermarks[stage.vertex.id] = watermark_after(latest_by_split(stage, results), quiet_are_idle=quiet)
        return by_split

    def _write(self, subtasks: tuple[SubtaskSnapshot, ...], read: int, late: int) -> BackfillResult:
        graph, target = self._graph, self._target
        pending = tuple(output for part in subtasks for output in part.committables)
        counts = {v.id: sum(part.vertex_id == v.id for part in subtasks) for v in graph.vertices}
        SavepointWriter(target, target).manifest(
            Manifest(
                kind="savepoint",
                sequence=0,
                job_id="0" * 32,
                job_name=graph.name,
                run_id=self.run_id,
                generation=0,
                nonce=self.run_id,
                created_ms=self._clock.now_ms(),
                checkpoint_id=CHECKPOINT_ID,
                graph_fingerprint=graph.fingerprint,
                key_groups=graph.settings.key_groups,
                operators={o.uid: (counts[v.id], v.id) for v in graph.vertices for o in v.operators if o.stateful},
                subtasks=subtasks,
                pending=pending,
                runs=(self.run_id,),
                barrier="savepoint",
                note=target.uri,
                origin=target.uri,
            )
        )
        reached = min((self._watermarks[vertex_id] for vertex_id in self._histories), default=MIN_TIMESTAMP)
        sources = {v.operators[0].uid: self._histories[v.id] for v in graph.vertices if v.is_source}
        return BackfillResult(
            uri=target.uri,
            run_id=self.run_id,
            rows_read=read,
            rows_staged=sum(output.rows for output in pending),
            rows_late=late,
            watermark=None if reached == MIN_TIMESTAMP else reached,
            positions={uid: {split.rest.id: split.rest.state for split in h.splits} for uid, h in sources.items()},
            tables={uid: h.tables for uid, h in sources.items() if h.tables},
            histories={uid: h.uris for uid, h in sources.items() if h.uris},
        )


def latest_by_split(stage: Stage, results: Sequence[TaskResult]) -> list[TaskResult]:
    """Return for each split the part with the largest event time, without parts that do not count for it."""
    found: dict[int, TaskResult] = {}
    for result in results:
        number = stage.pieces[result.part].number
        if result.quiet:
            continue
        if number not in found or result.watermark > found[number].watermark:
            found[number] = result
    return list(found.values())


def remove_unreferenced(store: ObjectStore, run_id: str, subtasks: Collection[SubtaskSnapshot]) -> None:
    """Remove files of this run's failed or duplicate tasks; files of other runs stay."""
    named = {s.file.path for part in subtasks for state in part.keyed for s in state.segments}
    named |= {ref.path for part in subtasks for output in part.committables for ref in output.files}
    for key in store.list(""):
        if f"{run_id}-" in key.rpartition("/")[2] and key not in named:
            store.delete(key)


def _quiet_are_idle(vertex: JobVertex) -> bool:
    strategies = [o.config.get("watermarks") for o in vertex.operators if o.kind in ("source", "assign_watermarks")]
    return strategy_from_builtins(strategies[-1]).idle_timeout_ms is not None
