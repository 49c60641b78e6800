"""Functions on the rows of one operator under another key, for any engine; pure.

Called by `snapshots.rewrite.rekey`, which has all rows at once, and by `snapshots.on_spark.spark_rekey`, whose tasks
have some each.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import UsageError
from penstock.core.evolution import field_id
from penstock.core.keygroup import first_hash_of
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.kernels.keys.hashing import hash_columns
from penstock.snapshots.access.content import identity_of
from penstock.snapshots.rewrite.split_points import Loads
from penstock.state.log.migration import is_value
from penstock.state.log.row_spec import TIMERS
from penstock.state.log.segment_columns import KEY_HASH, KEY_IDS, SEQ
from penstock.state.log.segments import key_names
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

#: An internal column next to those of a key: the position of the key among all.
_PLACE = "__place"
#: Number of hash ranges in which the bytes of rows under their new keys are counted.
BUCKETS = 1 << 16
#: Assumed bytes of a value in a column without value lengths.
_OTHER_BYTES = 16
#: Rows that are encoded at a time.
_WRITTEN_ROWS = 250_000


class NewCut(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one state under its new key that one subtask will own; files are named by `number`."""

    number: int
    #: The state without segments, with its new schema and hash range.
    state: KeyedStateSnapshot

    def write(self, rows: pa.Table, target: ObjectStore) -> KeyedStateSnapshot:
        """Write rows as `ordered` returns them; a repetition writes the same files."""
        pieces = (rows.slice(first, _WRITTEN_ROWS) for first in range(0, rows.num_rows, _WRITTEN_ROWS))
        return SavepointWriter(target, target, f"{self.number:05d}-").rows(self.state, pieces)


@dataclass(frozen=True, slots=True)
class Twice:
    """Old keys with rows whose new key is also that of others."""

    keys: int
    #: A new key, and two old ones that map to it.
    example: str

    def error(self, where: str) -> UsageError:
        """Return the error for these keys."""
        msg = f"{where}: the new key is not unique: {self.keys} old keys collide, for example {self.example}"
        return UsageError(
            msg, hint="keep the distinguishing columns in the key, or merge the rows with ps.snapshots.read and write"
        )


def is_timers(state: str) -> bool:
    """Return whether a state has timers, each of which exists once."""
    return state.startswith(TIMERS)


def twice_of(old: pl.DataFrame, new: pl.DataFrame) -> Twice | None:
    """Search for new keys of two or more old ones; each row is one old key and its new one."""
    twice = new.is_duplicated()
    if not twice.any():
        return None
    first = new.filter(twice).head(1)
    same = new.with_row_index(_PLACE).join(first, on=new.columns, nulls_equal=True)[_PLACE]
    olds = " and ".join(_shown(old[int(place)]) for place in same[:2])
    return Twice(int(twice.sum()), f"{_shown(first)} of {olds}")


def rekeyed(rows: pa.Table, keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with `keys`, one for each, replacing theirs; `schema` is the result of `schema_of`."""
    old = rows.schema
    rest = [name for name in old.names if name != KEY_HASH and field_id(old.field(name)) not in KEY_IDS]
    columns = dict(zip(schema.names[1 + len(keys.schema) :], (rows.column(name) for name in rest), strict=True))
    columns |= {name: keys.column(name) for name in keys.schema.names}
    columns[KEY_HASH] = pa.chunked_array([pa.array(hash_columns(_batch(keys), tuple(keys.schema.names)))])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def ordered(rows: pa.Table, *, timers: bool) -> pa.Table:
    """Return rows in the order of files: by hash, else unchanged; of timers that became equal, only the first."""
    schema = rows.schema
    if timers:
        once = pl.DataFrame(pl.from_arrow(rows.select(identity_of(schema)))).with_row_index(_PLACE)
        rows = rows.take(once.unique(identity_of(schema), keep="first", maintain_order=True)[_PLACE].to_arrow())
    rows = rows.take(pa.array(np.argsort(rows.column(KEY_HASH).to_numpy(), kind="stable")))
    place = schema.get_field_index(SEQ)
    return rows.set_column(place, schema.field(place), pa.array(np.arange(rows.num_rows)))


def sizes_by_bucket(rows: pa.Table) -> np.ndarray:
    """Return the approximate bytes of rows in each of the `BUCKETS` hash ranges."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        kind = column.type
        if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        else:
            sizes += max(1, kind.bit_width // 8) if pt.is_primitive(kind) else _OTHER_BYTES
    top = (rows.column(KEY_HASH).to_numpy() >> np.int64(32)) + np.int64(1 << 31)
    buckets = (top * BUCKETS) >> np.int64(32)
    return np.bincount(buckets, weights=sizes, minlength=BUCKETS).astype(np.int64)


def loads_by_bucket(sizes: np.ndarray) -> Loads:
    """Return the result of `sizes_by_bucket` as loads."""
    return Loads.of(
        (first_hash_of(n, BUCKETS), first_hash_of(n + 1, BUCKETS) - 1, int(sizes[n]))
        for n in np.flatnonzero(sizes).tolist()
    )


def schema_of(old: pa.Schema, keys: pa.Schema, where: str) -> pa.Schema:
    """Return the columns of a segment under the new key; values are renamed as by `RowSpec.value_names` if needed.

    Raises:
        UsageError: a column of the key has a name that the state needs.
    """
    #: Names that a value could not have next to the old key: it got an underscore, and so did one with that name.
    hidden = set(key_names(old))
    fields, taken = [old.field(KEY_HASH)], set(keys.names)
    for number, field in enumerate(keys, start=KEY_IDS.start):
        text = str(number).encode()
        fields.append(pa.field(field.name, field.type, True, {b"id": text, b"PARQUET:field_id": text}))
    for field in old:
        if field.name == KEY_HASH or field_id(field) in KEY_IDS:
            continue
        name = field.name
        if name.endswith("_") and name[:-1] in hidden:
            hidden.add(name)
            name = name[:-1]
        while name in taken and is_value(field):
            name += "_"
        taken.add(name)
        fields.append(field.with_name(name))
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: the state has a column {twice!r} already", hint="give the key column another name")
    return pa.schema(fields, old.metadata)


def _shown(row: pl.DataFrame) -> str:
    return "(" + ", ".join(f"{name}={value!r}" for name, value in row.row(0, named=True).items()) + ")"


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches(max_chunksize=max(1, table.num_rows))
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
