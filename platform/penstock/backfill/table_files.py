"""The Parquet files of a table in a folder or on the object store: listing, columns, row groups.

Called by `table_plan`, which reads footers before anything runs, and by `table_reader`, which reads the rows.
"""

from __future__ import annotations

import urllib.parse
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import open_store
from penstock.core.errors import ConnectorError, UsageError
from penstock.core.range_file import RangeFile

_ENDING = ".parquet"
#: Name that Hive and Spark give to the folder of rows without a value.
_NULL = "__HIVE_DEFAULT_PARTITION__"
#: Table formats that list their valid files elsewhere, by the keys they contain.
_FORMATS = (
    ("_delta_log/", ".json", "Delta"),
    ("metadata/", ".metadata.json", "Iceberg"),
    (".hoodie/", ".properties", "Hudi"),
)


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, in the state when it was listed."""

    root: str
    key: str
    size: int
    #: Columns that are null in all of it, if the table's format says so; None: folder names may hold values.
    absent: tuple[str, ...] | None = None

    @property
    def uri(self) -> str:
        """Return the file's URI."""
        return f"{self.root}/{self.key}"


def files_of(uri: str) -> list[TableFile]:
    """Return the files at a URI, which is a file or a folder of any depth, sorted by name.

    Names that begin with a dot or `_` and those that do not end in `.parquet` are skipped.

    Raises:
        UsageError: there is none, or the folder is a table whose files are listed elsewhere.
        StorageError: the store cannot be reached.
    """
    return _one(uri) or _folder(open_store(uri))


def require_once(files: Iterable[TableFile]) -> None:
    """Refuse a file that is listed twice.

    Raises:
        UsageError: names the first such file.
    """
    twice = [uri for uri, times in Counter(file.uri for file in files).items() if times > 1]
    if twice:
        raise UsageError(f"{twice[0]} is named twice", hint="its rows would count twice")


def file_at(location: str, size: int) -> TableFile:
    """Return a file by its name in another system, which escapes no character: `s3a://` and `file:/` are known."""
    scheme, _, rest = location.partition(":")
    if scheme in ("s3", "s3a", "s3n"):
        bucket, _, key = rest.removeprefix("//").partition("/")
        return TableFile(root=f"s3://{bucket}", key=key, size=size, absent=())
    if scheme == "file":
        location = f"/{rest.lstrip('/')}"
    root, _, name = location.rpartition("/")
    if "://" not in root:
        root = f"file://{urllib.parse.quote(root, safe='/=')}"
    return TableFile(root=root, key=name, size=size, absent=())


def _one(uri: str) -> list[TableFile]:
    root, _, name = uri.rpartition("/")
    if not name.endswith(_ENDING):
        return []
    store = open_store(root or ".")
    try:
        return [TableFile(root=store.uri, key=name, size=store.size(name))]
    except FileNotFoundError:
        return []  # Spark gives folders such names too


def _folder(store: ObjectStore) -> list[TableFile]:
    keys = [*store.list(""), *store.list(".hoodie/")]  # a local store lists hidden folders only by name
    for folder, ending, name in _FORMATS:
        if any(key.endswith(ending) and f"/{folder}" in f"/{key}" for key in keys):
            msg = f"{store.uri} is a table of {name}: its folder also has files that are no longer valid"
            way = "name each table separately" if name == "Iceberg" else "give the data files of a snapshot, each"
            raise UsageError(msg, hint=way)
    names = [key for key in keys if key.endswith(_ENDING) and not any(_hidden(part) for part in key.split("/"))]
    if not names:
        raise UsageError(f"there is no Parquet file at {store.uri}", hint=f"files have names that end in {_ENDING}")
    return [TableFile(root=store.uri, key=key, size=store.size(key)) for key in names]


def _hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def partition_values(file: TableFile) -> dict[str, str | None]:
    """Return the values of columns outside of the file: from folders (`day=2026-01-01/part-0.parquet`), or nulls."""
    if file.absent is not None:
        return dict.fromkeys(file.absent)
    parts = [part.partition("=") for part in file.uri.split("/")[:-1] if "=" in part]
    return {name: None if value == _NULL else urllib.parse.unquote(value) for name, _, value in parts}


def open_parquet(file: TableFile) -> pq.ParquetFile:
    """Open a file; its row groups are fetched as they are read.

    Raises:
        ConnectorError: it is gone, was changed since it was listed, or is no Parquet file.
    """
    store = open_store(file.root)
    try:
        size = store.size(file.key)
        if size != file.size:
            msg = f"{file.uri} has {size} bytes, but had {file.size} when the backfill began"
            raise ConnectorError(msg, hint="a table must not change while it is read: start the backfill again")
        fetched = RangeFile(size, lambda offset, length: store.read(file.key, offset, length))
        return pq.ParquetFile(fetched, pre_buffer=True)
    except (FileNotFoundError, pa.ArrowException) as error:
        msg = f"{file.uri} cannot be read: {str(error).splitlines()[0]}"
        raise ConnectorError(msg, hint="check that the file is complete and readable from every machine") from error


def read_group(opened: pq.ParquetFile, file: TableFile, group: int, names: Sequence[str]) -> pa.Table:
    """Return columns of a row group: columns from folders as text, missing ones as nulls.

    Raises:
        ConnectorError: it is damaged.
    """
    own = [name for name in names if name in opened.schema_arrow.names]
    try:
        table = opened.read_row_group(group, columns=own, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        msg = f"{file.uri} cannot be read: row group {group}: {str(error).splitlines()[0]}"
        raise ConnectorError(msg, hint="check that the file is complete") from error
    rows, values = opened.metadata.row_group(group).num_rows, partition_values(file)
    columns = [
        table.column(name) if name in own else pa.chunked_array([pa.repeat(pa.scalar(values[name]), rows)])
        for name in names
    ]
    return pa.Table.from_arrays(columns, names=list(names))
