"""Local files as a bounded source: `FileSource` for users, its enumerator and reader for the runtime.

Each file is one split. A reader keeps a bounded number of files open and reads them in turns, so that event times of
files that were written in parallel advance together.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from penstock.connector.source import BadRecord, HistorySplit, PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.connector.staging import dead_letters
from penstock.core.counts import counted
from penstock.core.errors import BadRecordError, ConnectorError, GraphError, UsageError
from penstock.core.schema import arrow_schema_of, schema_from_text, schema_to_text
from penstock.core.structs import prepare
from penstock_connectors.files.cursors import BLOCK_BYTES, line_number, open_cursor
from penstock_connectors.formats.decoded import excerpt
from penstock_connectors.formats.timestamps import TimestampUnit

if TYPE_CHECKING:
    from penstock.connector.source import SourceContext
    from penstock_connectors.files.cursors import BadLine, Cursor, ReadResult

FileFormat = Literal["jsonl", "parquet", "csv"]
OnBadRecord = Literal["fail", "skip", "dead-letter"]

_FACTORY = "penstock_connectors.files.source:FileSourceFactory"
_FORMATS = ("jsonl", "parquet", "csv")
_POLICIES = ("fail", "skip", "dead-letter")
_TIMESTAMP_UNITS = ("auto", "s", "ms", "us")
_OPEN_FILES = 16
#: Files that a message names.
_NAMED = 3


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SourceSpec.config`."""

    path: str
    format: FileFormat
    on_bad_record: OnBadRecord
    timestamp_unit: TimestampUnit = "auto"

    def cursor(self, path: str, schema: pa.Schema, state: dict[str, Any], block_bytes: int) -> Cursor:
        """Open a file at the position in `state`."""
        return open_cursor(path, self.format, schema, state, block_bytes, self.timestamp_unit)


prepare(_Config)


@dataclass(frozen=True)
class FileSource:
    """The rows of a file, a folder's files or a glob pattern, read once from beginning to end.

    `schema` is a `ps.Schema` (or another row type) or an Arrow schema. Files that begin with a dot are skipped.
    `timestamp_unit` is the unit of integer times in JSON; `auto` takes the magnitude (see `formats.timestamps`).
    """

    path: str | os.PathLike[str]
    schema: Any
    format: FileFormat = "jsonl"
    on_bad_record: OnBadRecord = "fail"
    timestamp_unit: TimestampUnit = "auto"

    @property
    def row_schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        return self.schema if isinstance(self.schema, pa.Schema) else arrow_schema_of(self.schema)

    @property
    def row_type(self) -> type | None:
        """Return the class of the rows in row functions; None with an Arrow schema."""
        return None if isinstance(self.schema, pa.Schema) else self.schema

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: an unknown format, policy or unit, a URL for a path, or a column that CSV does not support.
        """
        path = os.fspath(self.path)
        if self.format not in _FORMATS:
            msg = f"FileSource: unknown format {self.format!r}"
            raise GraphError(msg, hint=f"use one of {', '.join(_FORMATS)}")
        if self.on_bad_record not in _POLICIES:
            msg = f"FileSource: unknown on_bad_record {self.on_bad_record!r}"
            raise GraphError(msg, hint=f"use one of {', '.join(_POLICIES)}")
        if self.timestamp_unit not in _TIMESTAMP_UNITS:
            msg = f"FileSource: unknown timestamp_unit {self.timestamp_unit!r}"
            raise GraphError(msg, hint=f"use one of {', '.join(_TIMESTAMP_UNITS)}")
        if self.timestamp_unit != "auto" and self.format != "jsonl":
            msg = f"FileSource: timestamp_unit={self.timestamp_unit!r} is for format='jsonl', not {self.format!r}"
            way = f"declare the field as int and set unit={self.timestamp_unit!r} on the watermark strategy"
            raise GraphError(msg, hint=way)
        if "://" in path:
            msg = f"FileSource: {path!r} is not a local path"
            raise GraphError(msg, hint="give a path that every worker sees")
        if self.format == "csv":
            _check_csv(self.row_schema)
        config = _Config(
            path=str(Path(path).absolute()),
            format=self.format,
            on_bad_record=self.on_bad_record,
            timestamp_unit=self.timestamp_unit,
        )
        return SourceSpec(
            factory=_FACTORY,
            config=msgspec.to_builtins(config),
            schema=schema_to_text(self.row_schema),
            bounded=True,
            place=config.path,
            split_ids=[config.path, f"{config.path}/*"],
            listed_once=True,
        )


def _check_csv(schema: pa.Schema) -> None:
    """Check CSV support column by column with Arrow's reader and an empty file; raises GraphError."""
    from pyarrow import csv

    for field in schema:
        asked = csv.ConvertOptions(column_types={"column": field.type})
        try:
            csv.read_csv(pa.py_buffer(b"column\n"), convert_options=asked)
        except pa.ArrowNotImplementedError as error:
            msg = f"FileSource: column {field.name!r} is {field.type}, which the CSV reader does not support"
            raise GraphError(msg, hint="read it as a string and convert it with .with_columns(...)") from error


class FileSourceFactory:
    """Makes enumerator and reader from the spec."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        """Read text in blocks of `block_bytes`."""
        self._block_bytes = block_bytes

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> FileEnumerator:
        """Return the enumerator; files are listed once, at the job's first start."""
        return FileEnumerator(msgspec.convert(spec.config, _Config), first_run=first_run)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> FileReader:
        """Return a reader for one subtask."""
        del context
        return FileReader(msgspec.convert(spec.config, _Config), schema_from_text(spec.schema), self._block_bytes)

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return the files, each complete; see `HistoryFactory`."""
        del piece_rows
        if begin is not None or "begin" in until:
            raise UsageError(
                "a file source cannot continue where a table ends", hint="Kafka's topics and the generators do"
            )
        if until:
            raise UsageError("a file source has no end position but its end", hint="use --until latest")
        splits = self.create_enumerator(spec, first_run=True).discover(frozenset())
        return tuple(HistorySplit((s,), msgspec.structs.replace(s, finished=True)) for s in splits)

    def unread(self, spec: SourceSpec, splits: tuple[SourceSplit, ...]) -> str:
        """Return the files that appeared or grew after they were listed; see `ListedOnceFactory`."""
        had = {split.id: int(split.state["size"]) for split in splits}
        now = {str(path): path.stat().st_size for path in _matching(msgspec.convert(spec.config, _Config).path)}
        newer = {path: size - had.get(path, 0) for path, size in now.items() if size > had.get(path, 0)}
        if not newer:
            return ""
        told = [_growth(path, size, is_new=path not in had) for path, size in newer.items()]
        rest = sum(list(newer.values())[_NAMED:])
        more = [f"{counted(len(told) - _NAMED, 'more file')} with {rest:,} bytes"] if rest else []
        return "; ".join([*told[:_NAMED], *more])

    def validate(self, spec: SourceSpec) -> None:
        """Check that there is a file and that the first one can be opened.

        Raises:
            ConnectorError: there is none, or it lacks columns.
        """
        config = msgspec.convert(spec.config, _Config)
        split = FileEnumerator(config, first_run=True).discover(frozenset())[0]
        config.cursor(split.id, schema_from_text(spec.schema), split.state, BLOCK_BYTES).close()


def _growth(path: str, size: int, *, is_new: bool) -> str:
    if is_new:
        return f"{path} is new since the job began: its {size:,} bytes are not read"
    return f"{path} has grown since the job began: {size:,} bytes more are not read"


class FileEnumerator:
    """Lists the files of a path or pattern."""

    def __init__(self, config: _Config, *, first_run: bool) -> None:
        self._config = config
        self._listed = not first_run

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return the files of the first discovery, sorted; later none, as the input is bounded.

        Raises:
            ConnectorError: no file matches.
        """
        if self._listed and known:
            return ()
        self._listed = True
        files = _matching(self._config.path)
        if not files:
            msg = f"file source: no file at {self._config.path}"
            raise ConnectorError(msg, hint="give a file, a folder with files, or a glob pattern")
        return tuple(
            SourceSplit(id=str(path), state={"size": path.stat().st_size}) for path in files if str(path) not in known
        )

    def close(self) -> None:
        """Do nothing."""


def _matching(pattern: str) -> list[Path]:
    """Return the files of a path, a folder or a glob pattern, sorted; hidden ones do not count."""
    if Path(pattern).is_dir():
        pattern = str(Path(glob.escape(pattern)) / "*")
    found = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207 - the pattern is a whole path
    return [path for path in found if path.is_file() and not path.name.startswith(".")]


@dataclass(slots=True)
class _Split:
    state: dict[str, Any]
    finished: bool
    cursor: Cursor | None = None
    paused: bool = False

    def position(self) -> dict[str, Any]:
        return self.state if self.cursor is None else self.cursor.position()

    def close(self) -> None:
        if self.cursor is not None:
            self.state = self.cursor.position()
            self.cursor.close()
            self.cursor = None


class FileReader:
    """Reads its assigned files, a few at a time."""

    def __init__(self, config: _Config, schema: pa.Schema, block_bytes: int) -> None:
        self._config, self._schema, self._block_bytes = config, schema, block_bytes
        self._splits: dict[str, _Split] = {}
        self._bad_records = 0
        self._bad_record: BadRecord | None = None

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Read these files from their positions."""
        for split in splits:
            self._splits[split.id] = _Split(dict(split.state), split.finished)

    def poll(self, max_rows: int) -> PollResult:
        """Return some rows of each open file."""
        active = [(path, split) for path, split in self._splits.items() if not (split.finished or split.paused)]
        active = active[:_OPEN_FILES]
        batches: list[SourceBatch] = []
        finished: list[str] = []
        for path, split in active:
            if split.cursor is None:
                split.cursor = self._config.cursor(path, self._schema, split.state, self._block_bytes)
            result = split.cursor.read(max(1, max_rows // len(active)))
            if result is None:
                split.close()
                split.finished = True
                finished.append(path)
            else:
                batches.append(self._batch(path, result))
        metrics = {"badRecords": float(self._bad_records)}
        return PollResult(tuple(batches), tuple(finished), metrics=metrics, bad_record=self._bad_record)

    def _batch(self, path: str, result: ReadResult) -> SourceBatch:
        if not result.bad:
            return SourceBatch(result.rows, (path,))
        policy = self._config.on_bad_record
        if policy == "fail":
            bad = _bad_record(path, result.bad[0])
            more = f" ({len(result.bad) - 1} more in the same read)" if len(result.bad) > 1 else ""
            msg = f"file source: {bad.where}{more}"
            hint = _OTHER_FORMATS.get(
                result.bad[0].value[:2], "fix the file, or set on_bad_record='skip' or 'dead-letter'"
            )
            raise BadRecordError(msg, hint=hint, values=bad.value, where=bad.where, records=len(result.bad))
        self._bad_records += len(result.bad)
        if self._bad_record is None:  # its line number costs a read of the file up to there
            self._bad_record = _bad_record(path, result.bad[0])
        letters = _dead_letter_rows(path, result.bad) if policy == "dead-letter" else None
        return SourceBatch(result.rows, (path,), dead_letters=letters)

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Pause some files, which are closed meanwhile so that others can be opened."""
        for path in (*pause, *resume):
            split = self._splits[path]
            split.paused = path in pause
            if split.paused:
                split.close()

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return every file with its position."""
        return tuple(
            SourceSplit(id=path, state=split.position(), finished=split.finished)
            for path, split in self._splits.items()
        )

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Do nothing: no outside system needs it."""

    def close(self) -> None:
        """Close all open files."""
        for split in self._splits.values():
            split.close()


#: First bytes of files that are no text, and the way to read them.
_OTHER_FORMATS = {
    b"\x1f\x8b": "the file is compressed with gzip: decompress it first",
    b"PA": "it is a Parquet file: set format='parquet'",
}


def _bad_record(path: str, line: BadLine) -> BadRecord:
    where = f"{path} line {line_number(path, line.offset):,}: {line.reason}"
    return BadRecord(where, f"line: {excerpt(line.value)}")


def _dead_letter_rows(path: str, bad: tuple[BadLine, ...]) -> pa.RecordBatch:
    return dead_letters(
        value=[line.value for line in bad],
        topic=[path] * len(bad),
        offset=[line.offset for line in bad],
        error=[line.reason for line in bad],
    )
