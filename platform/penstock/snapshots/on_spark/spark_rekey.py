"""A change of keys as jobs of Spark.

Called by `penstock state rekey`.

The first job reads the operator's states, computes the new keys and checks that they are unique: keys are shuffled by
their new hash, the same as Spark's `xxhash64`. It writes nothing, and returns the bytes per bucket of new hashes. From
that the driver splits the states into ranges. The second job shuffles the rows of each range together and writes them
in the order in which they were read, so that a repeated or duplicate task writes the same bytes to the same names.
Neither job caches data on executors: after the loss of one, Spark computes its part again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.checkpoint.stores import open_store
from penstock.core.errors import UsageError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.snapshots.on_spark.spark_repartition import gathered, on_spark
from penstock.snapshots.rewrite.key_expressions import KeyColumn, keys_of, require_by_key
from penstock.snapshots.rewrite.recut import Cut, Run
from penstock.snapshots.rewrite.rekeying import (
    BUCKETS,
    NewCut,
    Twice,
    is_timers,
    loads_by_bucket,
    ordered,
    rekeyed,
    schema_of,
    sizes_by_bucket,
    twice_of,
)
from penstock.state.log.segment_columns import KEY_HASH
from penstock.state.log.segments import key_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.store import ObjectStore
    from penstock.snapshots.rewrite.rekey import Rekeying
    from penstock.snapshots.rewrite.split_points import Loads

#: Prefixes of columns with a key's old and new values.
_OLD, _NEW = "old ", "new "
_PART = "part"
#: True with encoded keys and row positions; False with an encoded `_Seen`.
_Found = tuple[bool, bytes]
#: The number of the input range, the number of the table in it, and its rows.
_Moved = tuple[int, int, bytes]


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one task: a range of one state, and the expressions of its keys."""

    cut: Cut
    source_uri: str
    key: tuple[KeyColumn, ...]
    where: str

    @property
    def state(self) -> str:
        """Return the state's name."""
        return self.cut.held[0].state

    def rekeyed(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the rows, and the same under their new keys; raises UsageError if an expression fails."""
        schema = schema_from_text(self.cut.held[0].schema)
        for rows in self.cut.rows(open_store(self.source_uri)):
            keys = keys_of(pl.DataFrame(pl.from_arrow(rows.select(key_names(schema)))), self.key, self.where)
            yield rows, rekeyed(rows, keys, schema_of(schema, keys.schema, self.where))


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task of the first job."""

    state: str = ""
    #: Bytes by bucket of the new hashes: numbers of buckets, and bytes, as int64.
    buckets: bytes = b""
    sizes: bytes = b""
    #: Number of old keys that collide with others, and an example.
    twice: int = 0
    example: str = ""
    #: The error of an expression, and the hint.
    wrong: tuple[str, str] | None = None


class SparkRekey:
    """Runs the work in a session of Spark; executors need penstock and the stores' credentials."""

    def __init__(self, session: SparkSession) -> None:
        """Use `session`, which stays the caller's."""
        self._session = session

    @property
    def run(self) -> Run:
        """Return the function that writes ranges whose key stays; see `rekey.Engine`."""
        return on_spark(self._session)

    def rekeyed(self, work: Rekeying) -> _OnSpark:
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
            (cuts,) = state.cuts(work.snapshot, [ALL_HASHES], work.limits.cut_bytes, len(pieces))
            for cut in cuts:
                piece = _Piece(cut=cut, source_uri=work.snapshot.store.uri, key=work.key, where=work.where)
                pieces.append(msgspec.msgpack.encode(piece))
        parts = len(pieces)
        seen = (
            self._session.sparkContext.parallelize(pieces, parts)
            .flatMap(functools.partial(_look, parts))
            .partitionBy(parts, _itself)
            .mapPartitions(_apart)
        )
        loads = _loads(work, [msgspec.msgpack.decode(one, type=_Seen) for one in gathered(seen)])
        return _OnSpark(self._session, pieces, schemas, loads)


@dataclass(frozen=True, slots=True)
class _OnSpark:
    """See `rekey.Rekeyed`."""

    session: SparkSession
    pieces: list[bytes]
    schemas: Mapping[str, pa.Schema]
    loads: Mapping[str, Loads]

    def write(self, cuts: Sequence[NewCut], target: ObjectStore) -> list[KeyedStateSnapshot]:
        """Write the rows; see `rekey.Rekeyed`."""
        context = self.session.sparkContext
        lows: dict[str, list[tuple[int, int]]] = {}
        for cut in cuts:
            lows.setdefault(cut.state.state, []).append((cut.state.hash_low, cut.number))
        encoded = [msgspec.msgpack.encode(cut) for cut in cuts]
        written = (
            context.parallelize(self.pieces, len(self.pieces))
            .flatMap(functools.partial(_move, {name: sorted(found) for name, found in lows.items()}))
            .partitionBy(len(cuts), _itself)
            .mapPartitionsWithIndex(functools.partial(_write, encoded, target.uri))
        )
        return [msgspec.msgpack.decode(state, type=KeyedStateSnapshot) for state in gathered(written)]


def _loads(work: Rekeying, seen: Sequence[_Seen]) -> dict[str, Loads]:
    """Return the bytes of each state by new hash, or raise the error of a task."""
    wrong = next((one.wrong for one in seen if one.wrong is not None), None)
    if wrong is not None:
        raise UsageError(wrong[0], hint=wrong[1])
    twice = [one for one in seen if one.twice]
    if twice:
        raise Twice(sum(one.twice for one in twice), twice[0].example).error(work.where)
    sizes = {name: np.zeros(BUCKETS, np.int64) for name in work.states}
    for one in seen:
        if one.state:
            sizes[one.state][np.frombuffer(one.buckets, np.int64)] += np.frombuffer(one.sizes, np.int64)
    return {name: loads_by_bucket(found) for name, found in sizes.items()}


def _look(parts: int, encoded: bytes) -> Iterator[tuple[int, _Found]]:
    """Read one range; yield its keys by their new hashes, and its bytes by new hash."""
    piece = msgspec.msgpack.decode(encoded, type=_Piece)
    sizes = np.zeros(BUCKETS, np.int64)
    try:
        for rows, new in piece.rekeyed():
            sizes += sizes_by_bucket(new)
            if not is_timers(piece.state):
                yield from _keys_by_part(rows, new, parts)
    except UsageError as error:
        yield 0, (False, msgspec.msgpack.encode(_Seen(wrong=(error.message, error.hint))))
        return
    places = np.flatnonzero(sizes)
    seen = _Seen(state=piece.state, buckets=places.astype(np.int64).tobytes(), sizes=sizes[places].tobytes())
    yield 0, (False, msgspec.msgpack.encode(seen))


def _keys_by_part(rows: pa.Table, new: pa.Table, parts: int) -> Iterator[tuple[int, _Found]]:
    """Yield each old key of rows once, with its new one, by the partition of its new hash."""
    part = (((new.column(KEY_HASH).to_numpy() >> np.int64(32)) + np.int64(1 << 31)) * parts) >> np.int64(32)
    old, keys = (pl.DataFrame(pl.from_arrow(table.select(key_names(table.schema)))) for table in (rows, new))
    pairs = pl.concat(
        [old.rename(lambda name: _OLD + name), keys.rename(lambda name: _NEW + name)], how="horizontal"
    ).with_columns(pl.Series(_PART, part))
    for found in pairs.unique().partition_by(_PART):
        yield found[_PART][0], (True, _encoded(found.drop(_PART).to_arrow()))


def _apart(items: Iterable[tuple[int, _Found]]) -> Iterator[bytes]:
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
    pairs = pairs.sort(olds, nulls_last=True)
    old = pairs.select(olds).rename(lambda name: name.removeprefix(_OLD))
    twice = twice_of(old, pairs.drop(olds).rename(lambda name: name.removeprefix(_NEW)))
    if twice is not None:
        yield msgspec.msgpack.encode(_Seen(twice=twice.keys, example=twice.example))


def _move(lows: dict[str, list[tuple[int, int]]], encoded: bytes) -> Iterator[tuple[int, _Moved]]:
    """Read one range; yield its rows under their new keys by new range, with their position."""
    piece = msgspec.msgpack.decode(encoded, type=_Piece)
    bounds = np.array([low for low, _ in lows[piece.state]], np.int64)
    numbers = [number for _, number in lows[piece.state]]
    for step, (_, new) in enumerate(piece.rekeyed()):
        places = np.searchsorted(bounds, new.column(KEY_HASH).to_numpy(), side="right") - 1
        together = new.take(pa.array(np.argsort(places, kind="stable")))
        stops = np.cumsum(np.bincount(places, minlength=len(bounds))).tolist()
        for number, first, stop in zip(numbers, [0, *stops], stops, strict=False):
            if stop > first:
                yield number, (piece.cut.number, step, _encoded(together.slice(first, stop - first)))


def _write(cuts: list[bytes], target_uri: str, number: int, moved: Iterable[tuple[int, _Moved]]) -> Iterator[bytes]:
    """Write one range; one without rows has no file."""
    cut = msgspec.msgpack.decode(cuts[number], type=NewCut)
    tables = [_decoded(data) for _, (_, _, data) in sorted(moved, key=lambda item: item[1][:2])]
    rows = pa.concat_tables([schema_from_text(cut.state.schema).empty_table(), *tables]).combine_chunks()
    written = cut.write(ordered(rows, timers=is_timers(cut.state.state)), open_store(target_uri))
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
