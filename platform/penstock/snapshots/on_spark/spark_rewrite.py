"""`penstock state repartition` and `rekey` as jobs of Spark.

A task writes the files of one hash range and returns their entries for the manifest; the driver writes the manifest
last. A change of keys needs two jobs: the first measures and, if two keys may become one, checks the new keys; the
second shuffles and writes. A repeated task writes the same bytes to the same names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.checkpoint.stores import open_store
from penstock.core.errors import StorageError, UsageError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.kernels.rows.row_order import hash_order
from penstock.snapshots.on_spark.spark_context import described, reason_of
from penstock.snapshots.rewrite.key_expressions import KeyColumn, keeps_apart, keys_of, require_by_key
from penstock.snapshots.rewrite.prepared import PreparedRun
from penstock.snapshots.rewrite.rekey import (
    BUCKETS,
    DuplicateKeys,
    RekeyedRange,
    find_duplicate_keys,
    is_timers,
    loads_by_bucket,
    ordered,
    rekeyed,
    schema_of,
    sizes_by_bucket,
)
from penstock.snapshots.rewrite.repartition import Run, StateRange, WriteTask
from penstock.snapshots.rewrite.segment_runs import SegmentRun
from penstock.state.log.segment_columns import KEY_HASH, key_names

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from penstock.checkpoint.store import ObjectStore
    from penstock.snapshots.rewrite.rekey import RekeyRequest
    from penstock.snapshots.rewrite.split_points import Loads

T = TypeVar("T")


def on_spark(context: SparkContext) -> Run:
    """Return a function that does each task as a task of Spark.

    Executors need penstock and store credentials.
    """

    def run(tasks: Sequence[WriteTask], source: ObjectStore, target: ObjectStore) -> list[KeyedStateSnapshot]:
        if not tasks:
            return []
        encoded = [msgspec.msgpack.encode(task) for task in tasks]
        sent = context.parallelize(encoded, len(encoded))
        with described(context, f"write {target.uri} from {source.uri}"):
            written = gathered(sent.map(functools.partial(_write, source.uri, target.uri)))
        return [msgspec.msgpack.decode(state, type=KeyedStateSnapshot) for state in written]

    return run


def gathered(tasks: RDD[T]) -> list[T]:
    """Run the tasks and return their results.

    Raises:
        StorageError: a task failed more often than Spark retries; with its error.
    """
    try:
        return tasks.collect()
    except (PySparkException, Py4JError) as error:
        raise StorageError(f"a Spark task failed: {reason_of(error)}", hint="no savepoint was written") from error


def _write(source_uri: str, target_uri: str, encoded: bytes) -> bytes:
    task: WriteTask = msgspec.msgpack.decode(encoded, type=StateRange | SegmentRun | PreparedRun)
    return msgspec.msgpack.encode(task.write(open_store(source_uri), open_store(target_uri)))


#: Prefixes of columns with a key's old and new values.
_OLD, _NEW = "old ", "new "
_PART = "part"
#: True with encoded keys and row positions; False with an encoded `_KeyStatistics`.
_Found = tuple[bool, bytes]
#: The number of the input range, the number of the table in it, and its rows.
_Moved = tuple[int, int, bytes]


class _ReadTask(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one task: a range of one state, and the expressions of its keys."""

    state_range: StateRange
    source_uri: str
    key: tuple[KeyColumn, ...]
    where: str

    @property
    def state(self) -> str:
        """Return the state's name."""
        return self.state_range.held[0].state

    def rekeyed(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the rows, and the same under their new keys; raises UsageError if an expression fails."""
        schema = schema_from_text(self.state_range.held[0].schema)
        for rows in self.state_range.rows(open_store(self.source_uri)):
            keys = keys_of(pl.DataFrame(pl.from_arrow(rows.select(key_names(schema)))), self.key, self.where)
            yield rows, rekeyed(rows, keys, schema_of(schema, keys.schema, self.where))


class _KeyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task of the first job."""

    state: str = ""
    #: Bytes by bucket of the new hashes: numbers of buckets, and bytes, as int64.
    buckets: bytes = b""
    sizes: bytes = b""
    #: Number of old keys that collide with others, and an example.
    duplicates: int = 0
    example: str = ""
    #: The error of an expression, and the hint.
    wrong: tuple[str, str] | None = None


class SparkRekey:
    """Runs the work on Spark; executors need penstock and the stores' credentials."""

    def __init__(self, context: SparkContext) -> None:
        """Use `context`, which stays the caller's."""
        self._context = context

    @property
    def run(self) -> Run:
        """Return the function that writes ranges whose key stays; see `rekey.Engine`."""
        return on_spark(self._context)

    def rekeyed(self, work: RekeyRequest) -> _OnSpark:
        """Compute the new keys; see `rekey.Engine`.

        Raises:
            UsageError: also if an expression may read more than one key.
            StorageError: a task failed more often than Spark retries.
        """
        first = next(iter(work.states.values()))
        old = schema_from_text(first.parts[0].schema)
        none = pl.DataFrame(pl.from_arrow(old.empty_table().select(key_names(old))))
        keys = keys_of(none, work.key, work.where)
        require_by_key(work.key, work.where)
        schemas = work.schemas(keys.schema)
        pieces: list[bytes] = []
        for state in work.states.values():
            (state_ranges,) = state.state_ranges(work.snapshot, [ALL_HASHES], work.limits.range_bytes, len(pieces))
            for state_range in state_ranges:
                piece = _ReadTask(
                    state_range=state_range, source_uri=work.snapshot.store.uri, key=work.key, where=work.where
                )
                pieces.append(msgspec.msgpack.encode(piece))
        parts = len(pieces)
        read = self._context.parallelize(pieces, parts)
        if keeps_apart(work.key, pa.schema([old.field(name) for name in key_names(old)])):
            scanned = read.map(_measure)
        else:
            moved = read.flatMap(functools.partial(_scan_keys, parts)).partitionBy(parts, _itself)
            scanned = moved.mapPartitions(_require_unique_keys)
        with described(self._context, f"compute the new keys of {first.parts[0].uid} in {work.snapshot.store.uri}"):
            found = gathered(scanned)
        loads = _loads(work, [msgspec.msgpack.decode(one, type=_KeyStatistics) for one in found])
        return _OnSpark(self._context, pieces, schemas, loads)


@dataclass(frozen=True, slots=True)
class _OnSpark:
    """See `rekey.Rekeyed`."""

    context: SparkContext
    pieces: list[bytes]
    schemas: Mapping[str, pa.Schema]
    loads: Mapping[str, Loads]

    def write(self, state_ranges: Sequence[RekeyedRange], target: ObjectStore) -> list[KeyedStateSnapshot]:
        """Write the rows; see `rekey.Rekeyed`."""
        lows: dict[str, list[tuple[int, int]]] = {}
        for state_range in state_ranges:
            lows.setdefault(state_range.state.state, []).append((state_range.state.hash_low, state_range.number))
        encoded = [msgspec.msgpack.encode(state_range) for state_range in state_ranges]
        written = (
            self.context.parallelize(self.pieces, len(self.pieces))
            .flatMap(functools.partial(_rekey_rows, {name: sorted(found) for name, found in lows.items()}))
            .partitionBy(len(state_ranges), _itself)
            .mapPartitionsWithIndex(functools.partial(_write_rekeyed, encoded, target.uri))
        )
        with described(self.context, f"write {target.uri} with new keys of {', '.join(self.schemas)}"):
            found = gathered(written)
        return [msgspec.msgpack.decode(state, type=KeyedStateSnapshot) for state in found]


def _loads(work: RekeyRequest, statistics: Sequence[_KeyStatistics]) -> dict[str, Loads]:
    """Return the bytes of each state by new hash, or raise the error of a task."""
    wrong = next((one.wrong for one in statistics if one.wrong is not None), None)
    if wrong is not None:
        raise UsageError(wrong[0], hint=wrong[1])
    duplicates = [one for one in statistics if one.duplicates]
    if duplicates:
        raise DuplicateKeys(sum(one.duplicates for one in duplicates), duplicates[0].example).error(work.where)
    sizes = {name: np.zeros(BUCKETS, np.int64) for name in work.states}
    for one in statistics:
        if one.state:
            sizes[one.state][np.frombuffer(one.buckets, np.int64)] += np.frombuffer(one.sizes, np.int64)
    return {name: loads_by_bucket(found) for name, found in sizes.items()}


def _measure(encoded: bytes) -> bytes:
    """Read one range; return its bytes by new hash."""
    ((_, (_, statistics)),) = _scan_keys(0, encoded)
    return statistics


def _scan_keys(parts: int, encoded: bytes) -> Iterator[tuple[int, _Found]]:
    """Read one range; yield its keys by their new hashes in `parts` (0: no keys), and its bytes by new hash."""
    piece = msgspec.msgpack.decode(encoded, type=_ReadTask)
    sizes = np.zeros(BUCKETS, np.int64)
    try:
        for rows, new in piece.rekeyed():
            sizes += sizes_by_bucket(new)
            if parts and not is_timers(piece.state):
                yield from _keys_by_part(rows, new, parts)
    except UsageError as error:
        yield 0, (False, msgspec.msgpack.encode(_KeyStatistics(wrong=(error.message, error.hint))))
        return
    places = np.flatnonzero(sizes)
    statistics = _KeyStatistics(
        state=piece.state, buckets=places.astype(np.int64).tobytes(), sizes=sizes[places].tobytes()
    )
    yield 0, (False, msgspec.msgpack.encode(statistics))


def _keys_by_part(rows: pa.Table, new: pa.Table, parts: int) -> Iterator[tuple[int, _Found]]:
    """Yield each old key of rows once, with its new one, by the partition of its new hash."""
    part = (((new.column(KEY_HASH).to_numpy() >> np.int64(32)) + np.int64(1 << 31)) * parts) >> np.int64(32)
    old, keys = (pl.DataFrame(pl.from_arrow(table.select(key_names(table.schema)))) for table in (rows, new))
    pairs = pl.concat(
        [old.rename(lambda name: _OLD + name), keys.rename(lambda name: _NEW + name)], how="horizontal"
    ).with_columns(pl.Series(_PART, part))
    for found in pairs.unique().partition_by(_PART):
        yield found[_PART][0], (True, _encoded(found.drop(_PART).to_arrow()))


def _require_unique_keys(items: Iterable[tuple[int, _Found]]) -> Iterator[bytes]:
    """Pass on the results of tasks, and check that new keys have one old key each."""
    frames = []
    for _, (is_keys, data) in items:
        if is_keys:
            frames.append(pl.DataFrame(pl.from_arrow(_decoded(data))))
        else:
            yield data
    if not frames:
        return
    pairs = pl.concat(frames).unique()
    olds = [name for name in pairs.columns if name.startswith(_OLD)]
    if pairs.drop(olds).n_unique() == pairs.height:
        return
    pairs = pairs.sort(olds, nulls_last=True)
    old = pairs.select(olds).rename(lambda name: name.removeprefix(_OLD))
    duplicates = find_duplicate_keys(old, pairs.drop(olds).rename(lambda name: name.removeprefix(_NEW)))
    if duplicates is not None:
        yield msgspec.msgpack.encode(_KeyStatistics(duplicates=duplicates.keys, example=duplicates.example))


def _rekey_rows(lows: dict[str, list[tuple[int, int]]], encoded: bytes) -> Iterator[tuple[int, _Moved]]:
    """Read one range; yield its rows under their new keys by new range, with their position."""
    piece = msgspec.msgpack.decode(encoded, type=_ReadTask)
    bounds = np.array([low for low, _ in lows[piece.state]], np.int64)
    numbers = [number for _, number in lows[piece.state]]
    for step, (_, new) in enumerate(piece.rekeyed()):
        hashes = new.column(KEY_HASH).to_numpy()
        order = hash_order(hashes)  # the receiver's stable sort then only merges sorted runs
        together = new.take(pa.array(order))
        # the ranges of a state cover all hashes
        stops = [*np.searchsorted(hashes[order], bounds[1:]).tolist(), len(hashes)]
        for number, first, stop in zip(numbers, [0, *stops], stops, strict=False):
            if stop > first:
                yield number, (piece.state_range.number, step, _encoded(together.slice(first, stop - first)))


def _write_rekeyed(
    state_ranges: list[bytes], target_uri: str, number: int, moved: Iterable[tuple[int, _Moved]]
) -> Iterator[bytes]:
    """Write one range; one without rows has no file."""
    state_range = msgspec.msgpack.decode(state_ranges[number], type=RekeyedRange)
    tables = [_decoded(data) for _, (_, _, data) in sorted(moved, key=lambda item: item[1][:2])]
    rows = pa.concat_tables([schema_from_text(state_range.state.schema).empty_table(), *tables]).combine_chunks()
    written = state_range.write(ordered(rows, timers=is_timers(state_range.state.state)), open_store(target_uri))
    yield msgspec.msgpack.encode(written)


def _itself(number: int) -> int:
    return number


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decoded(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
