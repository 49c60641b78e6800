"""Incremental reading of one file, with a position from which reading can resume exactly.

Text files (`jsonl`, `csv`) resume at a byte offset after a line; Parquet at a row group and a row in it. Called by
`penstock_connectors.files.source`; reads are bounded, so a poll takes milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from penstock.core.errors import ConnectorError
from penstock_connectors.formats.json_decode import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_connectors.formats.timestamps import TimestampUnit

#: Bytes of text read at once; a longer line is read in steps of this up to `_LINE_BYTES`.
BLOCK_BYTES = 4 << 20
_LINE_BYTES = 64 << 20
#: Values in Arrow's errors about CSV: in quotes, or a line after the numbers of columns.
_QUOTED = re.compile(r"'.*'", re.DOTALL)
_LINE = re.compile(r"(columns, got \d+): .*", re.DOTALL)
_CHANGED = "files must not change while a job reads them; start with --fresh"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a row: its position, its bytes and the error."""

    offset: int
    value: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The rows of one read; `bad` are the lines in between that are not rows."""

    rows: pa.RecordBatch
    bad: tuple[BadLine, ...] = ()


def line_number(path: str, offset: int) -> int:
    """Return the number of the line that begins at a byte; reads the file up to there."""
    number, left = 1, offset
    with Path(path).open("rb") as file:
        while left and (block := file.read(min(left, BLOCK_BYTES))):
            number += block.count(b"\n")
            left -= len(block)
    return number


class Cursor(Protocol):
    """One open file."""

    def read(self, max_rows: int) -> ReadResult | None:
        """Return the next at most about `max_rows` rows, or None at the end."""

    def position(self) -> dict[str, Any]:
        """Return the position of the next read."""

    def close(self) -> None:
        """Close the file."""


def open_cursor(
    path: str,
    file_format: str,
    schema: pa.Schema,
    state: dict[str, Any],
    block_bytes: int = BLOCK_BYTES,
    timestamp_unit: TimestampUnit = "auto",
) -> Cursor:
    """Open a file at the position in `state`; read text in blocks of `block_bytes`, and JSON's times in a unit.

    Raises:
        ConnectorError: it cannot be read, lacks columns, or has shrunk.
    """
    try:
        size, had = Path(path).stat().st_size, int(state["size"])
        if size < had or (size > had and file_format == "parquet"):
            msg = f"file source: {path} has {size} bytes, but had {had} when the job began"
            raise ConnectorError(msg, hint=_CHANGED)
        if file_format == "parquet":
            return ParquetCursor(path, schema, state)
        if file_format == "csv":
            return TextCursor(path, state, CsvLines(path, schema).parse, block_bytes, header=True)
        return TextCursor(path, state, JsonLines(schema, timestamp_unit).parse, block_bytes, header=False)
    except (OSError, pa.ArrowException) as error:
        msg = f"file source: {path} cannot be read: {error}"
        raise ConnectorError(msg, hint="check that the file exists on every worker and is complete") from error


class TextCursor:
    """Lines of a file up to the size it had when it was discovered."""

    def __init__(self, path: str, state: dict[str, Any], parse: Any, block_bytes: int, *, header: bool) -> None:
        self._path, self._block_bytes = path, block_bytes
        self._offset = int(state.get("offset", 0))
        self._size = int(state["size"])
        self._parse = parse
        # a large buffer (Python 3.14 has 128 KB) would keep the bytes of a file that shrinks
        self._file = Path(path).open("rb", buffering=4096)  # noqa: SIM115 - closed by close()
        if header and self._offset == 0:
            self._offset = len(self._file.readline())
        #: Text that was read but not returned: small requests must not read a block each.
        self._block = b""
        #: Start and end of its lines; the next one is `_next`.
        self._bounds = np.zeros(1, np.int64)
        self._next = 0

    def read(self, max_rows: int) -> ReadResult | None:
        """Return the rows of the next whole lines."""
        if self._next == len(self._bounds) - 1 and not self._read_block():
            return None
        bounds = self._bounds[self._next : self._next + max_rows + 1]
        lines = pa.Array.from_buffers(
            pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._block)]
        )
        begins = self._offset + bounds[:-1] - bounds[0]
        self._next += len(bounds) - 1
        self._offset += int(bounds[-1] - bounds[0])
        return self._result(lines, begins)

    def _read_block(self) -> bool:
        """Read the next block and find its complete lines; return False at the end of the file."""
        self._file.seek(self._offset)
        self._block, self._next = self._whole_line(), 0
        ends = np.flatnonzero(np.frombuffer(self._block, np.uint8) == ord("\n")) + 1
        if self._block and (not len(ends) or ends[-1] < len(self._block)) and self._at_end(len(self._block)):
            ends = np.append(ends, len(self._block))  # the last line has no line end
        self._bounds = np.concatenate([[0], ends]).astype(np.int64)
        return bool(self._block)

    def _whole_line(self) -> bytes:
        """Read up to the block size, and further until a line is complete."""
        block = b""
        while True:
            want = min(self._block_bytes, self._size - self._offset - len(block))
            more = self._file.read(want) if want > 0 else b""
            block += more
            if want > 0 and not more:
                msg = f"file source: {self._path} is shorter than the {self._size} bytes it had when the job began"
                raise ConnectorError(msg, hint=_CHANGED)
            if not more or b"\n" in more:
                return block
            if len(block) > _LINE_BYTES:
                number = line_number(self._path, self._offset)
                msg = f"file source: {self._path} line {number:,} has more than {_LINE_BYTES >> 20} MB"
                raise ConnectorError(msg, hint="check the format setting: is this file made of lines?")

    def _at_end(self, length: int) -> bool:
        return self._offset + length >= self._size

    def _result(self, lines: pa.LargeBinaryArray, begins: Any) -> ReadResult:
        blank = pc.less_equal(pc.binary_length(pc.ascii_trim_whitespace(lines.view(pa.large_string()))), 0)
        if pc.any(blank).as_py():
            filled = pc.invert(blank)
            lines, begins = lines.filter(filled), begins[filled.to_numpy(zero_copy_only=False)]
        rows, bad = self._parse(lines)
        found = tuple(BadLine(int(begins[i]), lines[i].as_py().rstrip(b"\r\n"), reason) for i, reason in bad)
        return ReadResult(rows, found)

    def position(self) -> dict[str, Any]:
        """Return the byte offset after the last line."""
        return {"offset": self._offset, "size": self._size}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonLines:
    """One JSON object a line."""

    def __init__(self, schema: pa.Schema, timestamp_unit: TimestampUnit) -> None:
        self._decoder = JsonDecoder(schema, timestamp_unit)

    def parse(self, lines: pa.LargeBinaryArray) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        """Decode the lines; line ends are white space to JSON."""
        decoded = self._decoder.decode(lines)
        return decoded.rows, [(bad.index, bad.reason) for bad in decoded.bad]


class CsvLines:
    """Comma-separated values; the first line names the columns, and no value holds a line end."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        """Read the header. Raises ConnectorError when columns are missing."""
        with Path(path).open("rb") as file:
            header = file.readline().decode("utf-8-sig").strip()
        self._schema = schema
        names = pa_csv.read_csv(pa.py_buffer(f"{header}\n".encode())).column_names if header else []
        missing = [name for name in schema.names if name not in names]
        if missing:
            msg = f"file source: {path} has no column {', '.join(missing)}"
            raise ConnectorError(msg, hint=f"its first line names: {', '.join(names)}; correct the file or the schema")
        self._read = pa_csv.ReadOptions(use_threads=False, column_names=names, block_size=_LINE_BYTES)
        self._convert = pa_csv.ConvertOptions(
            column_types={field.name: field.type for field in schema}, include_columns=schema.names
        )

    def parse(self, lines: pa.LargeBinaryArray) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        """Parse all lines at once; if that fails, halve until the bad ones are isolated."""
        bad: list[tuple[int, str]] = []
        batches = self._parse_range(lines, 0, bad)
        table = pa.Table.from_batches(batches, schema=self._schema).combine_chunks()
        whole = table.to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=self._schema), bad

    def _parse_range(
        self, lines: pa.LargeBinaryArray, first: int, bad: list[tuple[int, str]]
    ) -> Sequence[pa.RecordBatch]:
        if not len(lines):
            return ()
        try:
            return self._parse_block(lines)
        except (pa.ArrowInvalid, ValueError) as error:
            if len(lines) == 1:
                bad.append((first, _without_values(error)))
                return ()
        half = len(lines) // 2
        left = self._parse_range(lines[:half], first, bad)
        return [*left, *self._parse_range(lines[half:], first + half, bad)]

    def _parse_block(self, lines: pa.LargeBinaryArray) -> Sequence[pa.RecordBatch]:
        block = b"".join(lines.to_pylist())
        table = pa_csv.read_csv(pa.py_buffer(block), read_options=self._read, convert_options=self._convert)
        for field in self._schema:
            if not field.nullable and table.column(field.name).null_count:
                msg = f"field {field.name!r} is empty and not nullable"
                raise ValueError(msg)
        if table.num_rows != len(lines):
            msg = f"{len(lines)} lines gave {table.num_rows} rows"
            raise ValueError(msg)
        return table.cast(self._schema).to_batches()  # type: ignore[no-any-return]


def _without_values(error: Exception) -> str:
    """Return the reason of a CSV error in one line; Arrow quotes the value or the line, which a setting may hide."""
    text = str(error)
    if isinstance(error, pa.ArrowInvalid):
        text = _LINE.sub(r"\1", _QUOTED.sub("'...'", text))
    return text.splitlines()[0]


class ParquetCursor:
    """Row groups of a Parquet file, sliced."""

    def __init__(self, path: str, schema: pa.Schema, state: dict[str, Any]) -> None:
        """Open the file. Raises ConnectorError when columns are missing."""
        self._path = path
        self._schema = schema
        self._group = int(state.get("row_group", 0))
        self._row = int(state.get("row", 0))
        self._size = int(state["size"])
        self._file = pq.ParquetFile(path)
        self._loaded: pa.Table | None = None
        missing = [name for name in schema.names if name not in self._file.schema_arrow.names]
        if missing:
            msg = f"file source: {path} has no column {', '.join(missing)}"
            names = ", ".join(self._file.schema_arrow.names)
            raise ConnectorError(msg, hint=f"it has: {names}; correct the file or the schema")

    def read(self, max_rows: int) -> ReadResult | None:
        """Return the next rows of the current row group."""
        while self._group < self._file.num_row_groups:
            if self._loaded is None:
                self._loaded = self._load()
            rows = self._loaded.slice(self._row, max_rows).combine_chunks().to_batches()
            if rows:
                self._row += rows[0].num_rows
                return ReadResult(rows[0])
            self._group, self._row, self._loaded = self._group + 1, 0, None
        return None

    def _load(self) -> pa.Table:
        table = self._file.read_row_group(self._group, columns=self._schema.names).select(self._schema.names)
        for field in self._schema:
            if not field.nullable and table.column(field.name).null_count:
                msg = f"file source: {self._path} has nulls in column {field.name!r} (row group {self._group})"
                raise ConnectorError(msg, hint="declare the field as `T | None`")
        try:
            return table.cast(self._schema)
        except pa.ArrowInvalid as error:
            msg = f"file source: {self._path} does not fit the schema: {error}"
            raise ConnectorError(msg, hint="correct the schema") from error

    def position(self) -> dict[str, Any]:
        """Return the row group and the row in it."""
        return {"row_group": self._group, "row": self._row, "size": self._size}

    def close(self) -> None:
        """Close the file."""
        self._file.close()
