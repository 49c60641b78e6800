"""Rows that travel in the job graph: the source of `env.from_collection`.

One split, `rows`, so one subtask reads all rows, in their order. `penstock.api.building.collection` makes the
spec.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock_connectors.generated import RowReader, SplitEnumerator, history

if TYPE_CHECKING:
    from penstock.connector.source import HistorySplit, SourceContext, SourceSpec


class _Rows:
    """The rows of the one split."""

    def __init__(self, spec: SourceSpec) -> None:
        data = pa.py_buffer(base64.b64decode(spec.config["rows"]))
        self._table = pa.ipc.open_stream(data).read_all().combine_chunks()

    def end(self, split: int) -> int | None:
        del split
        return int(self._table.num_rows)

    def make(self, split: int, position: int, count: int) -> pa.RecordBatch:
        del split
        return self._table.slice(position, count).to_batches()[0]

    def allowed_rows(self, elapsed_ms: float) -> None:
        """Return None, as no rate limits the rows."""


class CollectionSourceFactory:
    """Makes enumerator and reader of a spec whose config holds `rows`: an Arrow IPC stream as base64."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator of the one split."""
        del spec, first_run
        return SplitEnumerator("rows", 1)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> RowReader:
        """Return a reader for one subtask."""
        return RowReader(_Rows(spec), context.clock)

    def validate(self, spec: SourceSpec) -> None:
        """Check that the rows can be read; raises `pyarrow.ArrowInvalid`."""
        _Rows(spec)

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return the split up to a position; see `HistoryFactory`."""
        return history(_Rows(spec), self.create_enumerator(spec, first_run=True), (begin, until), piece_rows)
