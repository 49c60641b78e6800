"""Iceberg tables: the data files of one snapshot, and their columns by field id.

Called by `table_plan`, in the process that plans a backfill. Tasks receive the files and need no `pyiceberg`.
Manifests are checked for truncation first, because pyiceberg's compiled decoder reads beyond the end of a truncated
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.backfill.table_files import TableFile, file_at
from penstock.checkpoint.stores import open_store
from penstock.core.errors import ConnectorError, PenstockError, StorageError, UsageError, extra_hint

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MORE = 0x80


def require_whole(data: bytes) -> None:
    """Follow the blocks of a file to its end.

    Raises:
        ValueError: it is no Avro file, or it is truncated.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("it is not an Avro file")
    position = _after_metadata(data, len(_MAGIC))
    sync = data[position : position + _SYNC_BYTES]
    position += _SYNC_BYTES
    while position < len(data):
        _, position = _long(data, position)
        size, position = _long(data, position)
        position += size
        if size < 0 or data[position : position + _SYNC_BYTES] != sync:
            raise ValueError("it is truncated or damaged")
        position += _SYNC_BYTES
    if position > len(data):
        raise ValueError("it is truncated")


def _after_metadata(data: bytes, position: int) -> int:
    """Return the position after the header's map of metadata."""
    while True:
        count, position = _long(data, position)
        if count == 0:
            return position
        if count < 0:  # the size of these entries follows
            _, position = _long(data, position)
        for _ in range(2 * abs(count)):
            size, position = _long(data, position)
            position += size


def _long(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length number and the position after it."""
    value = shift = 0
    while True:
        if not 0 <= position < len(data):
            raise ValueError("it is truncated")
        byte = data[position]
        position += 1
        value |= (byte & ~_MORE) << shift
        if not byte & _MORE:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


_SCHEME = "iceberg://"
_AT = "?snapshot="
_METADATA = ".metadata.json"
_HINT = "metadata/version-hint.text"
_REWRITE = "rewrite the table's data files (Spark: rewrite_data_files with rewrite-all), then read the new snapshot"
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """One snapshot of a table."""

    #: The table's name with the snapshot's id, which identifies the same content later.
    uri: str
    #: File -> ids of the columns whose values may come from its partition instead.
    files: dict[TableFile, frozenset[int]]
    #: The table's columns.
    fields: dict[str, pa.Field]
    #: Columns with a non-null value in files that are older than they are.
    defaults: frozenset[str]

    def fitted(self, where: str, file: TableFile, found: pa.Schema, wanted: Iterable[pa.Field]) -> TableFile:
        """Return the file with the wanted columns that it is too old to have: they are null in it.

        Raises:
            UsageError: a column of that name is another one in the file than in the table, or its values are elsewhere.
        """
        if all(_id(field) is None for field in found):
            raise UsageError(
                f"{where}: its columns have no field ids, as the file was added from outside", hint=_REWRITE
            )
        names = {_id(field): field.name for field in found}
        absent = []
        for field in wanted:
            own = self.fields.get(field.name)
            if own is None:
                msg = f"{self.uri} has no column {field.name!r}"
                raise UsageError(msg, hint=f"it has: {', '.join(self.fields)}")
            named = names.get(_id(own))
            if named not in (None, field.name):
                raise UsageError(f"{where}: column {field.name!r} was {named!r} when it was written", hint=_REWRITE)
            if named is None:
                self._require_null(where, file, found, field)
                absent.append(field.name)
            elif dict(_ids(own)) != dict(_ids(found.field(field.name))):
                msg = f"{where}: column {field.name!r} had other nested fields when it was written"
                raise UsageError(msg, hint=_REWRITE)
        return TableFile(root=file.root, key=file.key, size=file.size, absent=tuple(absent))

    def _require_null(self, where: str, file: TableFile, found: pa.Schema, field: pa.Field) -> None:
        """Refuse a column that is missing in the file and does not read as null either."""
        if field.name in found.names:
            msg = (
                f"{where}: its column {field.name!r} was dropped later; the table's column of that name is a newer one"
            )
            raise UsageError(msg, hint=_REWRITE)
        if _id(self.fields[field.name]) in self.files[file]:
            msg = f"{where} has no column {field.name!r}: only its partition has the values"
            raise UsageError(msg, hint=_REWRITE)
        if field.name in self.defaults:
            msg = f"{where} is older than column {field.name!r}, which has a default"
            raise UsageError(msg, hint=_REWRITE)
        if not field.nullable:
            msg = f"{where} is older than column {field.name!r}, which would be null in it"
            raise UsageError(msg, hint="every row needs a value: declare it as `T | None`, or fill it in the table")


def open_iceberg(uri: str) -> IcebergSnapshot | None:
    """Return a snapshot of the table at `iceberg://CATALOG/NAMESPACE.TABLE`, a `.metadata.json` or a folder.

    `?snapshot=ID` after the name selects a snapshot; without it, the current one. None: there is no Iceberg table.

    Raises:
        UsageError: there is no such table or snapshot, it has deleted rows or files that are not Parquet, or
        `pyiceberg` is missing.
        ConnectorError: its catalog or metadata cannot be read.
    """
    table, at, text = uri.partition(_AT)
    if at and not text.isdecimal():
        raise UsageError(f"{uri}: {text!r} is not a snapshot id", hint=f"write {table}{_AT}ID, a number")
    if not table.startswith(_SCHEME) and not table.endswith(_METADATA):
        if found := _metadata_files(table):
            return _snapshot(table, *_static(_named_by_hint(table, found)), int(text) if at else None)
        if at:
            raise UsageError(f"{table} is not an Iceberg table and has no snapshots", hint="name it as it is")
        return None
    opened = _from_catalog(table) if table.startswith(_SCHEME) else _static(table)
    return _snapshot(table, *opened, int(text) if at else None)


def _metadata_files(uri: str) -> list[str]:
    """Return the metadata files of a folder; a Parquet file, which may be named too, has none."""
    try:
        return [key for key in open_store(uri).list("metadata/") if key.endswith(_METADATA)]
    except StorageError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            return []
        raise


def _from_catalog(uri: str) -> tuple[TableMetadata, FileIO]:
    catalog, _, name = uri.removeprefix(_SCHEME).partition("/")
    if not catalog or "." not in name:
        raise UsageError(f"{uri} names no table", hint=f"write {_SCHEME}CATALOG/NAMESPACE.TABLE")
    _require_pyiceberg(uri)
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = load_catalog(catalog).load_table(name)
    except NoSuchTableError as error:
        raise UsageError(f"Iceberg catalog {catalog!r} has no table {name!r}", hint="name its namespace too") from error
    except Exception as error:  # each kind of catalog has its own client and errors
        msg = f"Iceberg catalog {catalog!r} cannot be read: {_line(error)}"
        raise ConnectorError(msg, hint=f"check that {catalog} is in pyiceberg's configuration") from error
    return table.metadata, table.io


def _static(uri: str) -> tuple[TableMetadata, FileIO]:
    """Read a metadata file; the files it names are read from the same stores as its data."""
    _require_pyiceberg(uri)
    from pyiceberg.serializers import Compressor, FromByteStream

    from penstock.backfill.iceberg_io import StoreIO

    root, _, name = uri.rpartition("/")
    try:
        data = open_store(root or ".").read(name)
    except FileNotFoundError as error:
        raise UsageError(f"there is no {uri}", hint="name a metadata file of the table, or its folder") from error
    try:
        return FromByteStream.table_metadata(BytesIO(data), compression=Compressor.get_compressor(uri)), StoreIO()
    except Exception as error:  # errors of pyiceberg and of its decoders
        msg = f"{uri} is not the metadata of an Iceberg table: {_line(error)}"
        raise ConnectorError(msg, hint="check that the file is complete") from error


def _named_by_hint(folder: str, found: list[str]) -> str:
    """Return the metadata file that is current according to the table's folder."""
    try:
        hint = open_store(folder).read(_HINT).decode(errors="replace").strip()
    except FileNotFoundError as error:
        msg = f"{folder} is an Iceberg table, but does not name its current metadata: it has no {_HINT}"
        way = f"name the file, such as {folder.rstrip('/')}/{max(found)}, or {_SCHEME}CATALOG/NAMESPACE.TABLE"
        raise UsageError(msg, hint=way) from error
    name = f"v{hint}" if hint.isdecimal() else hint.removesuffix(_METADATA)
    return f"{folder.rstrip('/')}/metadata/{name}{_METADATA}"


def _snapshot(uri: str, metadata: TableMetadata, io: FileIO, wanted: int | None) -> IcebergSnapshot:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.transforms import IdentityTransform

    snapshot = metadata.current_snapshot() if wanted is None else metadata.snapshot_by_id(wanted)
    if snapshot is None and wanted is None:
        raise UsageError(f"{uri} has no snapshot: the table was never written to")
    if snapshot is None:
        known = ", ".join(str(s.snapshot_id) for s in metadata.snapshots[-5:])
        raise UsageError(f"{uri} has no snapshot {wanted}", hint=f"was it expired? the last that there are: {known}")
    schema = metadata.schema()
    if wanted is not None and snapshot.schema_id is not None:  # with the schema of that time, as other readers do
        schema = metadata.schema_by_id(snapshot.schema_id) or schema
    moved = {
        number: frozenset(field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform))
        for number, spec in metadata.specs().items()
    }
    named = f"{uri}{_AT}{snapshot.snapshot_id}"
    try:
        _require_whole(io, snapshot.manifest_list)
        files = dict(_data_files(named, snapshot.manifests(io), io, moved))
    except PenstockError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in pyiceberg's decoders
        msg = f"{named}: its list of files cannot be read: {_line(error)}"
        raise ConnectorError(
            msg, hint="check whether the snapshot expired meanwhile, or the table was moved"
        ) from error
    return IcebergSnapshot(
        uri=named,
        files={file: files[file] for file in sorted(files, key=lambda f: f.uri)},
        fields={field.name: field for field in schema_to_pyarrow(schema)},
        defaults=frozenset(field.name for field in schema.fields if field.initial_default is not None),
    )


def _data_files(
    named: str, manifests: Iterable[ManifestFile], io: FileIO, moved: dict[int, frozenset[int]]
) -> Iterator[tuple[TableFile, frozenset[int]]]:
    from pyiceberg.manifest import FileFormat, ManifestContent

    for manifest in manifests:
        _require_whole(io, manifest.manifest_path)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            found = entry.data_file
            if manifest.content == ManifestContent.DELETES:
                msg = f"{named} has rows that are deleted by {found.file_path}"
                raise UsageError(msg, hint=f"{_REWRITE}; remove-dangling-deletes removes the remaining delete files")
            if found.file_format != FileFormat.PARQUET:
                raise UsageError(
                    f"{named} has {found.file_path}, which is {found.file_format.value} instead of Parquet",
                    hint=_REWRITE,
                )
            yield file_at(found.file_path, found.file_size_in_bytes), moved[manifest.partition_spec_id]


def _require_whole(io: FileIO, path: str) -> None:
    """Check that a list of manifests or a manifest has all its blocks."""
    with io.new_input(path).open() as file:
        require_whole(file.read())


def _require_pyiceberg(uri: str) -> None:
    try:
        import pyiceberg.table  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError(f"{uri} is an Iceberg table", hint=extra_hint("iceberg")) from error


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(_FIELD_ID)
    return None if found is None else int(found)


def _ids(field: pa.Field, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int | None]]:
    """Yield the ids of a field and of those nested in it, by path; names of elements differ between writers."""
    yield place, _id(field)
    kind = field.type
    if pa.types.is_struct(kind):
        inside = {inner.name: inner for inner in kind}
    elif pa.types.is_map(kind):
        inside = {"key": kind.key_field, "value": kind.item_field}
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = {"element": kind.value_field}
    else:
        return
    for name, inner in inside.items():
        yield from _ids(inner, (*place, name))
