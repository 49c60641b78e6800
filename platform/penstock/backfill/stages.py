"""A job as stages of a batch: the inputs and results of their tasks. Pure; used by driver and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from penstock.backfill.exchange import COMBINED
from penstock.connector.source import HistorySplit, SourceSpec, SourceSplit
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.keygroup import ALL_HASHES, HashRange, hash_range_of
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import OperatorStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex

#: Kinds that keep the rows of a batch in order and have no state: their input may be read in parts.
STATELESS = frozenset(
    {"project", "key_selector", "constant_key", "spread_key", "map", "flat_map", "filter_rows", "sink"}
)


class SourceTask(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one task of a source: a split from its position to an end."""

    split: SourceSplit
    #: Index of the source's split, and whether the split has no rows.
    number: int
    empty: bool = False
    #: The source that reads it, if not the job's own.
    source: SourceSpec | None = None
    #: Whether its rows do not affect event time: their split is not known.
    quiet: bool = False


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the job: the description that all its tasks share."""

    job_name: str
    run_id: str
    vertex: JobVertex
    #: Number of subtasks: key ranges, or for a source its parts.
    parts: int
    key_groups: int
    #: Edges that end here in the order of inputs, those that begin here, and the number of parts of each of these.
    inputs: tuple[JobEdge, ...]
    outputs: tuple[JobEdge, ...]
    #: For each input the index of its edge among the outputs of the vertex that feeds it.
    places: tuple[int, ...]
    targets: tuple[int, ...]
    #: Settings as JSON: `config.settings.JobSettings`.
    settings: bytes
    #: The store for the files.
    target_uri: str
    #: The final event time.
    watermark: int = MIN_TIMESTAMP
    pieces: tuple[SourceTask, ...] = ()
    accepted: tuple[str, ...] = ()
    memory_bytes: int = 1 << 30
    #: The layout of combined rows on each output and on each input (`combining.layout_of`); empty if there are none.
    combined: tuple[bytes, ...] = ()
    combined_inputs: tuple[bytes, ...] = ()
    python_path: tuple[str, ...] = ()

    def hashes(self, part: int) -> HashRange:
        """Return the key hashes of one part."""
        return ALL_HASHES if self.vertex.is_source else hash_range_of(part, self.parts, self.key_groups)


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task: its part of the savepoint, and the event time after it."""

    vertex_id: str
    part: int
    snapshot: SubtaskSnapshot
    watermark: int
    rows_in: int
    #: Rows that operators dropped as late.
    late: int = 0
    #: Whether it does not affect event time.
    quiet: bool = False


def parts_of(vertex: JobVertex, parts: int, key_groups: int) -> int:
    """Return the number of parts of a vertex after a shuffle; a vertex with parallelism 1 keeps it."""
    keyed = any(operator.keyed for operator in vertex.operators)
    return min(parts, key_groups) if keyed or vertex.parallelism > 1 else 1


def is_splittable(vertex: JobVertex) -> bool:
    """Return whether several tasks may read the rows of one split: watermarks then depend on each part alone."""
    source, *behind = vertex.operators
    kind = (source.config.get("watermarks") or {"kind": "none"})["kind"]
    return kind in ("bounded", "none", "unmarked") and all(operator.kind in STATELESS for operator in behind)


def source_tasks(history: Sequence[HistorySplit]) -> tuple[SourceTask, ...]:
    """Return the parts of all splits in the order of splits."""
    return tuple(
        SourceTask(split=piece, number=number, empty=piece.finished)
        for number, split in enumerate(history)
        for piece in split.pieces
    )


def places_of(graph: JobGraph, inputs: Iterable[JobEdge]) -> tuple[int, ...]:
    """Return `Stage.places` of edges that end at one vertex."""
    return tuple(graph.out_edges(edge.source).index(edge) for edge in inputs)


def watermark_after(results: Iterable[TaskResult], *, quiet_are_idle: bool) -> int:
    """Return the event time after a stage: that of its slowest part.

    `quiet_are_idle`: a part without rows does not hold back event time, like a split with an idle time-out.
    """
    heard_of = [r.watermark for r in results if not r.quiet]
    known = [mark for mark in heard_of if not (quiet_are_idle and mark == MIN_TIMESTAMP)]
    return min(known, default=MIN_TIMESTAMP)


def with_event_time(stage: Stage, results: Sequence[TaskResult]) -> list[TaskResult]:
    """Return the results of tasks without those that assign event time and had no row.

    Live, each subtask there has rows: their number follows from the input instead of `--parts`. Parts without rows
    would hold back event time forever.
    """
    uids = {operator.uid for operator in stage.vertex.operators if operator.kind == "assign_watermarks"}
    return [r if r.rows_in or not uids else _without_event_time(r, uids) for r in results]


def _without_event_time(result: TaskResult, uids: set[str]) -> TaskResult:
    left = tuple(state for state in result.snapshot.operator if state.uid not in uids)
    snapshot = msgspec.structs.replace(result.snapshot, operator=left)
    return msgspec.structs.replace(result, snapshot=snapshot, watermark=MIN_TIMESTAMP, quiet=True)


def source_snapshots(
    stage: Stage, history: Sequence[HistorySplit], results: Sequence[TaskResult], *, quiet_are_idle: bool
) -> list[SubtaskSnapshot]:
    """Return one subtask per split, where the live job continues, with the combined state of its parts."""
    found = []
    uid = stage.vertex.operators[0].uid
    for number, split in enumerate(history):
        own = [r for r in results if stage.pieces[r.part].number == number]
        watermark = max((r.watermark for r in own if not r.quiet), default=MIN_TIMESTAMP)
        rest = msgspec.structs.replace(split.rest, watermark=None if watermark == MIN_TIMESTAMP else watermark)
        states = [
            OperatorStateSnapshot(uid=uid, name="splits", mode="split", items=(msgspec.to_builtins(rest),)),
            *_last_states(uid, own),
        ]
        if watermark != MIN_TIMESTAMP or not quiet_are_idle:
            states.append(OperatorStateSnapshot(uid=uid, name="watermark", mode="union", items=(watermark,)))
        outputs = tuple(c for r in own for c in r.snapshot.committables)
        part = SubtaskSnapshot(vertex_id=stage.vertex.id, subtask=number, operator=tuple(states), committables=outputs)
        found.append(part)
    return found


def _last_states(uid: str, own: Sequence[TaskResult]) -> list[OperatorStateSnapshot]:
    """Return the state of operators chained to the source, in which case there is one part."""
    return [state for r in own[-1:] for state in r.snapshot.operator if state.uid != uid]


def schemas_of(stage: Stage) -> dict[int, pa.Schema]:
    """Return the schemas of a stage's input rows, by edge as in `exchange.Packet`."""
    schemas = {number: schema_from_text(edge.schema) for number, edge in enumerate(stage.inputs)}
    combined = {COMBINED + number: data for number, data in enumerate(stage.combined_inputs) if data}
    return schemas | {number: pa.ipc.read_schema(pa.py_buffer(data)) for number, data in combined.items()}


def feeds(stage: Stage) -> list[tuple[str, int]]:
    """Return for each input of a stage the vertex that feeds it and the edge's index among that vertex's outputs."""
    return [(edge.source, place) for edge, place in zip(stage.inputs, stage.places, strict=True)]
