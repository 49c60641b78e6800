"""State in Spark: `spark.read.format("penstock")`, a Python data source over the files of a snapshot.

Spark discovers it by the package `pyspark_penstock`. The driver opens the snapshot once, when the frame is made. A task
reads the live rows of a range of key groups of one subtask's part, and only the row groups in that range. `df.write` is
implemented by `snapshots.on_spark.spark_writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.checkpoint.stores import open_store, read_file
from penstock.core.errors import UsageError
from penstock.core.keygroup import HashRange, first_hash_of
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.snapshots.access.content import StateContent, find_state
from penstock.snapshots.access.opening import Snapshot, open_snapshot
from penstock.snapshots.access.reading import OPERATOR_STATE, columns_of, items_of
from penstock.snapshots.rewrite.split_points import loads_of, ranges_by_size
from penstock.state.log.segments import read_state

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KNOWN = ("path", "uid", "name", "checkpoint", "withhash", "keygroups", "partitionbytes")
#: Default for the bytes of files that one task reads.
_PARTITION_BYTES = 128 << 20
_BATCH_ROWS = 65_536


@dataclass
class StatePart(InputPartition):
    """The input of one task: a hash range of one subtask's part, or the items of non-keyed state."""

    store_uri: str
    #: An encoded `KeyedStateSnapshot`.
    state: bytes = b""
    low: int = 0
    high: int = 0
    items: tuple[tuple[int, int, str], ...] = ()

    def __init__(self, store_uri: str, **values: Any) -> None:
        """Take the fields as keywords."""
        super().__init__(None)
        self.store_uri = store_uri
        for name, value in values.items():
            setattr(self, name, value)


class PenstockDataSource(DataSource):
    """One state of one operator, its live rows only, with the columns of `ps.snapshots.read`.

    The path is a savepoint's folder or a job's folder of checkpoints (its newest is used when the frame is made).
    Options: `uid` and `name` of the state (the name is optional if the operator has only one), `checkpoint` (a
    sequence), `withHash` (`true`: with `__key_hash`), `keyGroups` (`A-B`: only these, both included), `partitionBytes`
    (bytes of files a task reads, 128 MiB); for writing see `writer`. Executors open the store as the driver does: give
    them the same `PENSTOCK_S3_...` variables (`spark.executorEnv`).
    """

    _found: tuple[Snapshot, StateContent] | None = None

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """Return the state's columns as Spark's types.

        Raises:
            UsageError: an option is missing, unknown or malformed, or a column has no type in Spark.
            NotFoundError: there is no such snapshot or state.
        """
        unknown = [name for name in self.options if name.lower() not in _KNOWN]
        if unknown:
            raise UsageError(f'format("penstock") has no option {unknown[0]!r}', hint=f"it has {', '.join(_KNOWN[1:])}")
        path, uid = self._option("path"), self._option("uid")
        if not path or not uid:
            what = "a path" if not path else 'the option "uid"'
            hint = 'spark.read.format("penstock").option("uid", "totals").load("s3://bucket/savepoint")'
            raise UsageError(f'format("penstock") needs {what}', hint=hint)
        checkpoint = self._option("checkpoint")
        snapshot = open_snapshot(path, checkpoint=None if checkpoint is None else _number("checkpoint", checkpoint))
        state = find_state(snapshot.manifest, uid, self._option("name"))
        self._found = snapshot, state
        schema = self._arrow_schema(state)
        try:
            return from_arrow_schema(schema)
        except PySparkException as error:
            msg = f"{uid!r} has a column that Spark has no type for: {error}"
            raise UsageError(msg, hint="read it with ps.snapshots.read") from error

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for the result of `schema`."""
        if self._found is None:
            self.schema()
        assert self._found is not None  # noqa: S101 - `schema` has just set it
        snapshot, state = self._found
        groups = self._option("keyGroups")
        asked = None if groups is None else _hashes_of(groups, snapshot.manifest.key_groups)
        size = _number("partitionBytes", self._option("partitionBytes") or str(_PARTITION_BYTES))
        return StateReader(_parts_of(snapshot, state, asked, size), to_arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one state of a savepoint at the path; `overwrite` replaces the savepoint there.

        Options: `job` (a job file, or the output of `penstock run JOB.PY --write`), `uid` and `name` of the state, and
        `from` (a snapshot from which all other state, positions and pending output are copied; else they begin empty).
        Without `overwrite` (mode `append`) the path has to be empty.

        Raises:
            UsageError: see `spark_writing.state_writer`.
        """
        from penstock.snapshots.on_spark.spark_writing import state_writer  # not imported where tasks only read

        return state_writer(self.options, schema, overwrite=overwrite)

    def _arrow_schema(self, state: StateContent) -> pa.Schema:
        return columns_of(state, with_hash=(self._option("withHash") or "false").lower() == "true")

    def _option(self, name: str) -> str | None:
        found: str | None = self.options.get(name)
        return found


class StateReader(DataSourceReader):
    """Reads the planned parts."""

    def __init__(self, parts: list[StatePart], schema: pa.Schema) -> None:
        """Read `parts`, with the columns `schema` that Spark expects of every batch."""
        self._parts = parts
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [*self._parts] or [StatePart("")]  # Spark needs at least one partition

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of one part as Spark's Arrow batches.

        Raises:
            SnapshotDamagedError: a file is missing or damaged.
        """
        assert isinstance(partition, StatePart)  # noqa: S101 - made above
        if not partition.state and not partition.items:
            return
        if partition.items:
            items = [dict(zip(OPERATOR_STATE.names, item, strict=True)) for item in partition.items]
            tables = iter([pa.Table.from_pylist(items, schema=OPERATOR_STATE)])
        else:
            store = open_store(partition.store_uri)
            state = msgspec.msgpack.decode(partition.state, type=KeyedStateSnapshot)
            tables = read_state(state, lambda ref: read_file(store, ref), HashRange(partition.low, partition.high))
        for table in tables:
            shown = table.select(self._schema.names).cast(self._schema).combine_chunks()
            yield from shown.to_batches(max_chunksize=_BATCH_ROWS)


def _parts_of(snapshot: Snapshot, state: StateContent, asked: HashRange | None, size: int) -> list[StatePart]:
    uri = snapshot.store.uri
    if state.kind == "operator":
        return [StatePart(uri, items=tuple(items_of(state)))]
    parts = []
    for held in sorted(state.keyed, key=lambda held: held.hash_low):
        own = HashRange(held.hash_low, held.hash_high)
        within = own if asked is None else own.intersect(asked)
        if within is None or not held.segments:
            continue
        encoded = msgspec.msgpack.encode(held)
        ranges = ranges_by_size(loads_of([held]), within, size)
        parts += [StatePart(uri, state=encoded, low=r.low, high=r.high) for r in ranges]
    return parts


def _hashes_of(text: str, key_groups: int) -> HashRange:
    first, dash, last = text.partition("-")
    low, high = _number("keyGroups", first), _number("keyGroups", last if dash else first)
    if not low <= high < key_groups:
        raise UsageError(
            f"keyGroups {text!r} is not a range of the snapshot's key groups", hint=f"it has 0 to {key_groups - 1}: A-B"
        )
    return HashRange(first_hash_of(low, key_groups), first_hash_of(high + 1, key_groups) - 1)


def _number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a number", hint='e.g. "0-15" for keyGroups, else digits') from error
