"""An exactly-once sink into a folder: every chunk of every epoch becomes one part file, placed atomically and once.

A part's name holds its writer and checkpoint. Publishing writes a hidden file, syncs it and links it to that name,
which fails if the name exists. So publishing twice, by any process, leaves one file with the same rows.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connector.sink import CommitOutcome, SinkSpec
from penstock.connector.staging import decode_chunk
from penstock.core import failpoints
from penstock.core.errors import ConnectorError, GraphError
from penstock.core.rand import SystemRand
from penstock.core.schema import schema_to_text
from penstock.core.structs import prepare
from penstock_connectors.formats.json_encode import encode_json

if TYPE_CHECKING:
    from penstock.connector.sink import FileReader, SinkContext
    from penstock.core.permits import CommitPermit
    from penstock.core.snapshot import Committable

FileFormat = Literal["parquet", "jsonl", "arrow"]

_FACTORY = "penstock_connectors.files.sink:FileSinkFactory"
_FORMATS = ("parquet", "jsonl", "arrow")


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SinkSpec.config`."""

    path: str
    format: FileFormat


prepare(_Config)


@dataclass(frozen=True)
class FileSink:
    """Part files `part-<uid>-<run>-<subtask>-<checkpoint>-<chunk>.<format>` in a local folder, each row exactly once.

    Files whose names begin with a dot are incomplete; readers skip them.
    """

    path: str | os.PathLike[str]
    format: FileFormat = "parquet"

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink as a value.

        Raises:
            GraphError: an unknown format, a URL for a path, or a column the format cannot hold.
        """
        path = os.fspath(self.path)
        if self.format not in _FORMATS:
            msg = f"FileSink: unknown format {self.format!r}"
            raise GraphError(msg, hint=f"use one of {', '.join(_FORMATS)}")
        if "://" in path or not path:
            msg = f"FileSink: {path!r} is not a local folder"
            raise GraphError(msg, hint="give a path that every worker sees")
        try:
            _encode(input_schema.empty_table(), self.format)
        except (pa.ArrowException, TypeError) as error:
            msg = f"FileSink: {self.format} cannot hold these columns: {error}"
            raise GraphError(msg, hint="select other columns, or use format='arrow'") from error
        config = _Config(path=str(Path(path).absolute()), format=self.format)
        return SinkSpec(
            factory=_FACTORY,
            config=msgspec.to_builtins(config),
            delivery="exactly-once",
            schema=schema_to_text(input_schema),
            place=config.path,
        )


class FileSinkFactory:
    """Makes the committer from the spec; there is no writer, the sink operator stages."""

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> None:
        """Return None: delivery is staged."""

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> FileCommitter:
        """Return the committer of one subtask."""
        del context
        return FileCommitter(msgspec.convert(spec.config, _Config))

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        """Check that the folder can be made and written.

        Raises:
            ConnectorError: it cannot.
        """
        del checkpoint_interval_ms
        folder = Path(msgspec.convert(spec.config, _Config).path)
        _require_writable(folder)


class FileCommitter:
    """Publishes staged chunks as part files."""

    def __init__(self, config: _Config) -> None:
        self._folder = Path(config.path)
        self._format: FileFormat = config.format
        #: Names this committer's unfinished files: a late publisher must never link a file that another one is writing.
        self._own = SystemRand().token()

    def commit(
        self, permit: CommitPermit, committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Publish in order of checkpoint and chunk; existing parts are left as they are."""
        del permit  # only its existence is required
        _require_writable(self._folder)
        outcomes = []
        for committable in sorted(committables, key=lambda c: (c.run_id, c.subtask, c.checkpoint_id)):
            fresh = False
            for chunk, file in enumerate(committable.files):
                if chunk:
                    failpoints.hit("sink.between_chunks", committable=committable.id, chunk=chunk)
                fresh |= self._publish(part_name(committable, chunk, self._format), lambda file=file: read(file))
            outcomes.append(
                CommitOutcome(committable.id, "published" if fresh else "already-published", committable.rows)
            )
        return tuple(outcomes)

    def recover(
        self, permit: CommitPermit, prefixes: tuple[str, ...], committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Publish pending output.

        No fencing is needed, as a late writer of the same committable finds its parts in place.
        """
        del prefixes
        for committable in committables:
            for chunk in range(len(committable.files)):
                # left by a killed publisher; a live but late one fails on it and is fenced anyway
                for left in self._folder.glob(f".{glob.escape(part_name(committable, chunk, self._format))}.*"):
                    left.unlink(missing_ok=True)
        return self.commit(permit, committables, read)

    def close(self) -> None:
        """Do nothing."""

    def _publish(self, name: str, read: Any) -> bool:
        """Place one part; return False if it exists already."""
        final = self._folder / name
        if final.exists():
            return False
        data = _encode(decode_chunk(read()), self._format)
        try:
            hidden = self._write_hidden(name, data)
            try:
                os.link(hidden, final)
            except FileExistsError:
                return False
            finally:
                hidden.unlink(missing_ok=True)
            _sync_folder(self._folder)
            return True
        except OSError as error:
            msg = f"file sink: {final} cannot be written: {error.strerror or error}"
            raise ConnectorError(msg, hint="check space and permissions; the rows stay pending") from error

    def _write_hidden(self, name: str, data: bytes) -> Path:
        """Write and sync a file that no other publisher of the same part has."""
        hidden = self._folder / f".{name}.{self._own}"
        with hidden.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        return hidden


def part_name(committable: Committable, chunk: int, file_format: str) -> str:
    """Return the name of a part file: unique for the chunk, and the same for any publisher.

    Characters that a name cannot hold are escaped, not replaced: two sinks into one folder never share a name.
    """
    uid = re.sub(r"[^A-Za-z0-9_.-]", lambda found: f"~{ord(found[0]):x}~", committable.uid)
    owner = f"{uid}-{committable.run_id}-{committable.subtask}"
    return f"part-{owner}-{committable.checkpoint_id}-{chunk}.{file_format}"


def _encode(rows: pa.Table, file_format: FileFormat) -> bytes:
    sink = pa.BufferOutputStream()
    if file_format == "parquet":
        pq.write_table(rows, sink, compression="zstd")
    elif file_format == "arrow":
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    else:
        for batch in rows.to_batches():
            sink.write("".join(f"{line}\n" for line in encode_json(batch).to_pylist()).encode())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        msg = f"file sink: folder {folder} cannot be created: {error.strerror}"
        raise ConnectorError(msg, hint="use a writable folder") from error
    if not writable:
        msg = f"file sink: folder {folder} cannot be written"
        raise ConnectorError(msg, hint="use a writable folder")
