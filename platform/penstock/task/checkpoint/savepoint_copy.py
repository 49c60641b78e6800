"""Writes a self-contained savepoint from a complete checkpoint's manifest: plain Parquet, readable by other tools.

`<uri>/<uid>/<state>/part-<subtask>-<n>.parquet` contain the live rows (merged, deletions applied, sorted by key hash),
`<uri>/pending/...` the output not yet published, `<uri>/manifest.json` the manifest with paths relative to the
savepoint. Several workers write the parts, as background work; all reads are verified. The manifest is written last: a
folder without one is no savepoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.checkpoint.manifest_log import SAVEPOINT_MANIFEST, Manifest, encode_manifest
from penstock.checkpoint.savepoint_parts import joined_copy, split_for_copy
from penstock.checkpoint.stores import checksum_of, copy_file, read_file
from penstock.core.errors import StorageError
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot
from penstock.state.log.segment_log import LAST_TIER
from penstock.state.log.segments import SegmentWriter, read_state

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore

#: Rows of one part; a state has at least one part per subtask that had rows.
PART_ROWS = 1_000_000


def write_part(part: Manifest, source: ObjectStore, target: ObjectStore) -> Manifest:
    """Write the files of a part; return the part with references to them.

    The names of files depend on the checkpoint alone: when another leader divides the same checkpoint into other
    parts, a late writer replaces a file by the same bytes.

    Raises:
        SnapshotDamagedError: a file of the checkpoint is missing or damaged.
        StorageError: the target cannot be written.
    """

    def output(output: Committable) -> Committable:
        return SavepointWriter(source, target, f"{_digest(output.id)}-").output(output)

    def subtask(subtask: SubtaskSnapshot) -> SubtaskSnapshot:
        writer = SavepointWriter(source, target, f"{subtask.subtask:05d}-")
        return msgspec.structs.replace(
            subtask,
            keyed=tuple(map(writer.native_state if part.native else writer.state, subtask.keyed)),
            committables=tuple(map(output, subtask.committables)),
        )

    return msgspec.structs.replace(
        part, subtasks=tuple(map(subtask, part.subtasks)), pending=tuple(map(output, part.pending))
    )


def seal_savepoint(manifest: Manifest, source: ObjectStore, target: ObjectStore, uri: str) -> FileRef:
    """Write the manifest of the savepoint at `uri`, whose parts are written; return a reference to it.

    Raises:
        StorageError: it cannot be written, or the folder holds a savepoint already.
    """
    sealed = msgspec.structs.replace(manifest, kind="savepoint", note=uri, origin=manifest.origin or source.uri)
    return SavepointWriter(source, target).manifest(sealed)


def write_savepoint(manifest: Manifest, source: ObjectStore, target: ObjectStore) -> FileRef:
    """Write all parts and the manifest; return a reference to it. Called by `testing.harness`.

    Raises:
        SnapshotDamagedError, StorageError: as `write_part` and `seal_savepoint`.
    """
    copied = joined_copy(manifest, [write_part(part, source, target) for part in split_for_copy(manifest, 1)])
    return seal_savepoint(copied, source, target, target.uri)


class SavepointWriter:
    """Numbers the parts of each state, and copies each pending file once; also used by the offline tools."""

    def __init__(self, source: ObjectStore, target: ObjectStore, prefix: str = "") -> None:
        """Start without parts; `source` is the store of the snapshot's files.

        `prefix` begins the numbers of parts and pending files; it is unique among the writers to one target.
        """
        self._source = source
        self._target = target
        self._prefix = prefix
        self._parts: dict[str, int] = {}
        self._outputs: dict[tuple[str, int], FileRef] = {}

    def state(self, state: KeyedStateSnapshot) -> KeyedStateSnapshot:
        """Write one subtask's rows of one state; the result has them as its only segments."""
        return self.rows(state, read_state(state, self._read))

    def native_state(self, state: KeyedStateSnapshot) -> KeyedStateSnapshot:
        """Copy the files of one subtask's state as they are.

        A file is named after its place in the checkpoint: subtasks that share one after a rescale write the same.
        """
        return msgspec.structs.replace(
            state,
            segments=tuple(
                msgspec.structs.replace(segment, file=self._segment_file(f"{state.uid}/{state.state}", segment.file))
                for segment in state.segments
            ),
        )

    def rows(self, state: KeyedStateSnapshot, tables: Iterator[pa.Table]) -> KeyedStateSnapshot:
        """Write rows, sorted by hash and with the columns of the state's segments, as the state's new segments."""
        schema = schema_from_text(state.schema)
        segments = tuple(self._part(state, schema, group) for group in _groups(tables))
        return msgspec.structs.replace(
            state, segments=tuple(segment for segment in segments if segment.rows), tombstones=()
        )

    def output(self, output: Committable) -> Committable:
        """Copy the staged files of one committable."""
        return msgspec.structs.replace(output, files=tuple(self._copy(ref) for ref in output.files))

    def manifest(self, manifest: Manifest, *, replaces: str = "") -> FileRef:
        """Write the manifest, unless another one than the version `replaces` (its etag) exists.

        Raises:
            StorageError: another one exists, or it cannot be written.
        """
        data = encode_manifest(manifest)
        done = (
            self._target.put_if_match(SAVEPOINT_MANIFEST, data, replaces)
            if replaces
            else self._target.put_if_absent(SAVEPOINT_MANIFEST, data)
        )
        if not done and (not self._target.list(SAVEPOINT_MANIFEST) or self._target.read(SAVEPOINT_MANIFEST) != data):
            msg = f"{self._target.uri} already holds a savepoint" + (", not the one to replace" if replaces else "")
            raise StorageError(msg, hint="give another folder")
        return FileRef(path=SAVEPOINT_MANIFEST, length=len(data), checksum=checksum_of(data))

    def _part(self, state: KeyedStateSnapshot, schema: pa.Schema, tables: list[pa.Table]) -> Segment:
        position = 1 + max((segment.position for segment in state.segments), default=0)
        encoded = SegmentWriter(schema, position, LAST_TIER).write(tables)
        folder = f"{state.uid}/{state.state}"
        number = self._parts[folder] = self._parts.get(folder, -1) + 1
        file = self._put(f"{folder}/part-{self._prefix}{number:05d}.parquet", encoded.data)
        return encoded.stored(file, "savepoint")

    def _segment_file(self, folder: str, ref: FileRef) -> FileRef:
        if ref.inline is not None:
            return ref
        key = f"{folder}/part-{_digest(f'{ref.path}@{ref.offset}')}-00000.parquet"
        if copy_file(self._source, ref, self._target, key):
            return FileRef(path=key, length=ref.length, checksum=ref.checksum)
        return self._put(key, self._read(ref))

    def _copy(self, ref: FileRef) -> FileRef:
        if ref.inline is not None:
            return ref
        key = (ref.path, ref.offset)
        if key not in self._outputs:
            self._outputs[key] = self._put(
                f"pending/chunk-{self._prefix}{len(self._outputs):05d}.arrow", self._read(ref)
            )
        return self._outputs[key]

    def _put(self, key: str, data: bytes) -> FileRef:
        self._target.put(key, data)
        if self._target.read(key) != data:
            msg = f"{self._target.uri}/{key} does not hold what was written to it"
            raise StorageError(msg, hint="check the store's disk")
        return FileRef(path=key, length=len(data), checksum=checksum_of(data))

    def _read(self, ref: FileRef) -> bytes:
        return read_file(self._source, ref)


def _digest(text: str) -> str:
    """Return a name for a text, as part of a file name."""
    return hashlib.blake2s(text.encode(), digest_size=16).hexdigest()


def _groups(tables: Iterator[pa.Table]) -> Iterator[list[pa.Table]]:
    """Split the rows of a state into parts, between tables."""
    group: list[pa.Table] = []
    rows = 0
    for table in tables:
        group.append(table)
        rows += table.num_rows
        if rows >= PART_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group
