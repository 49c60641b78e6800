"""The sinks for the client: `stream.print()` writes lines to the worker's log, `execute_and_collect()` local files.

The client reads the files with `read_collected` and `read_first`.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.core.schema import schema_from_text
from penstock.operators.operator import NO_CAPABILITIES, Operator, OperatorSnapshot
from penstock.operators.rows.columns import conform, without_ts

if TYPE_CHECKING:
    from penstock.core.elements import Barrier, Batch
    from penstock.core.permits import CommitPermit
    from penstock.operators.operator import Capabilities, Collector, OperatorContext

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks


class PrintOperator(Operator):
    """Writes `<name>> {"column":value,...}`; after a restart rows may be printed again."""

    def open(self, context: OperatorContext) -> Capabilities:
        self._names = without_ts(context.input_schemas[0]).names
        self._prefix = f"{context.spec.config['name']}> "
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        rows = batch.data.select(self._names).to_pylist()
        sys.stdout.write("".join(f"{self._prefix}{_line(row)}\n" for row in rows))
        sys.stdout.flush()


def _line(row: dict[str, Any]) -> str:
    return msgspec.json.encode(row, enc_hook=str).decode()


_FILE = re.compile(r"rows-(\d+)-(\d+)\.arrow")


class CollectOperator(Operator):
    """Writes rows under config `folder`, with the schema of config `schema` (text) or the input's, without `__ts`.

    Config `limit`, if it is there: no file holds more rows than that.
    """

    _writer: pa.RecordBatchStreamWriter | None = None

    def open(self, context: OperatorContext) -> Capabilities:
        config: dict[str, Any] = context.spec.config
        self._folder = Path(config["folder"])
        text = config.get("schema")
        self._schema = schema_from_text(text) if text else without_ts(context.input_schemas[0])
        self._where = f"collect {context.spec.uid!r}"
        self._subtask = context.subtask
        self._epoch = context.restored_checkpoint or 0
        self._limit: int | None = config.get("limit")
        self._written = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, subtask, epoch in _files(self._folder):
            # after a rescale, files of removed subtasks have an owner too
            if subtask % context.parallelism == self._subtask and epoch >= self._epoch:
                path.unlink(missing_ok=True)
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        if self._writer is None:
            path = self._folder / f"rows-{self._subtask}-{self._epoch}.arrow"
            self._file = pa.OSFile(str(path), "wb")
            self._writer = pa.ipc.new_stream(self._file, self._schema)
            self._written = 0
        data = batch.data if self._limit is None else batch.data.slice(0, self._limit - self._written)
        if data.num_rows:
            self._writer.write_batch(conform(data, self._schema, self._where))
            self._written += data.num_rows

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        self.close()
        self._epoch = barrier.checkpoint_id
        return OperatorSnapshot()

    def notify_complete(self, permit: CommitPermit) -> None:
        """Do nothing: no output waits for a permit."""

    def finish(self, out: Collector) -> None:
        self.close()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._file.close()


def read_collected(folder: str, schema: pa.Schema) -> pa.Table:
    """Return all collected rows of a job that has ended, in order of subtask and epoch."""
    tables = [pa.Table.from_batches([], schema=schema)]
    for path, _, _ in _files(Path(folder)):
        with pa.OSFile(str(path), "rb") as source:
            tables.append(pa.ipc.open_stream(source).read_all().cast(schema))
    return pa.concat_tables(tables)


def read_first(folder: str, schema: pa.Schema, limit: int) -> pa.Table:
    """Return up to `limit` rows of those collected so far, while the job runs or after it was cancelled."""
    batches: list[pa.RecordBatch] = []
    for path, _, _ in _files(Path(folder)):
        # the file may end inside a batch, or may have been removed
        with contextlib.suppress(pa.ArrowInvalid, OSError), pa.OSFile(str(path), "rb") as source:
            batches.extend(pa.ipc.open_stream(source))
        if sum(batch.num_rows for batch in batches) >= limit:
            break
    return pa.Table.from_batches(batches, schema=schema).slice(0, limit)


def _files(folder: Path) -> list[tuple[Path, int, int]]:
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            found.append((path, int(match[1]), int(match[2])))
    return sorted(found, key=lambda entry: entry[1:])
