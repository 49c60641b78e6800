"""Both ends of a job in a backfill: a source that stops at its end position, and a sink that stages without publishing.

They replace the live operators of kinds `source` and `sink`; all others are the live job's own.
"""

# ruff: noqa: ARG002 - hooks take what the protocol gives them

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.checkpoint.stores import checksum_of
from penstock.connector.sink import SinkSpec
from penstock.core.errors import StorageError
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import Committable, FileRef
from penstock.core.views import plain_schema
from penstock.operators.operator import NO_CAPABILITIES, Operator, OperatorSnapshot
from penstock.operators.registry import create_operator
from penstock.operators.rows.columns import conform
from penstock.operators.sinks.sink_operator import EpochBuffer, chunk_bytes_of, sink_context
from penstock.operators.sources.source_operator import SourceOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.checkpoint.store import ObjectStore
    from penstock.connector.source import PollResult, SourceReader
    from penstock.core.elements import Barrier, Batch
    from penstock.operators.operator import Capabilities, Collector, OperatorContext


class _Endless:
    """A reader whose splits end without the end of event time: the live job continues them."""

    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader
        self.ended = False

    def poll(self, max_rows: int) -> PollResult:
        result = self._reader.poll(max_rows)
        if result.finished:
            self.ended = True
            return dataclasses.replace(result, finished=())
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class HistoryOperator(SourceOperator):
    """Reads one part to its end, which `read_to_end` reports."""

    def open(self, context: OperatorContext) -> Capabilities:
        opened = super().open(context)
        assert self._reader is not None  # noqa: S101 - it has just been made
        self._endless = _Endless(self._reader)
        self._reader = self._endless  # it forwards all other calls
        return opened

    @property
    def read_to_end(self) -> bool:
        """Return whether all of the part was emitted."""
        return self._endless.ended


class StagedSinkOperator(Operator):
    """Writes its rows as staged chunks below `pending/`; the job's own sink publishes them at its start."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        """Write files below `prefix`, which is unique to the attempt."""
        self._store, self._prefix = store, prefix
        self._files: list[FileRef] = []
        self._rows = 0

    def open(self, context: OperatorContext) -> Capabilities:
        self._context = context
        spec = msgspec.convert(context.spec.config["sink"], SinkSpec)
        self._where = f"sink {context.spec.uid!r}"
        self._schema = plain_schema(schema_from_text(spec.schema))
        self._chunk_bytes = chunk_bytes_of(context, spec)
        self._buffer = EpochBuffer(self._schema, self._chunk_bytes)
        self._names = sink_context(context)
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        self._buffer.add(conform(batch.data, self._schema, self._where))
        self._rows += batch.num_rows
        if self._buffer.size_bytes >= self._chunk_bytes:
            self._write()

    def process_watermark(self, watermark: Any, out: Collector) -> None:
        """Drop the watermark, as no operator follows a sink."""

    def process_status(self, status: Any, out: Collector) -> None:
        """Drop the status, as no operator follows a sink."""

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        self._write()
        if not self._rows:
            return OperatorSnapshot()
        names = self._names
        committable = Committable(
            id=f"{names.uid}/{names.run_id}/{names.subtask}/{barrier.checkpoint_id}",
            uid=names.uid,
            run_id=names.run_id,
            subtask=names.subtask,
            checkpoint_id=barrier.checkpoint_id,
            transactional_id=names.transactional_id,
            marker_group=names.transactional_id,
            files=tuple(self._files),
            rows=self._rows,
            size_bytes=sum(ref.length for ref in self._files),
            created_ms=names.clock.now_ms(),
        )
        return OperatorSnapshot(committables=(committable,))

    def _write(self) -> None:
        for encode in self._buffer.take():
            data = encode()
            key = f"pending/{self._prefix}{self._context.spec.uid}-{len(self._files):05d}.arrow"
            self._store.put(key, data)
            if self._store.read(key) != data:
                msg = f"{self._store.uri}/{key} does not have the content that was written to it"
                raise StorageError(msg, hint="check the store's disk")
            self._files.append(FileRef(path=key, length=len(data), checksum=checksum_of(data)))


def operators_of(store: ObjectStore, prefix: str) -> Callable[[str], Operator]:
    """Return the factory for the operators of one task."""
    source: Any = HistoryOperator
    sink: Any = StagedSinkOperator
    ends: dict[str, Callable[[], Operator]] = {"source": source, "sink": lambda: sink(store, prefix)}

    def create(kind: str) -> Operator:
        return ends[kind]() if kind in ends else create_operator(kind)

    return create
