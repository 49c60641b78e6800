"""Broadcast state: the same map in every subtask, written by the rows of a broadcast stream, read by those of all keys.

Kept as Python objects in memory. In a snapshot it is one operator state of the first subtask, which every subtask gets
back: the rows up to a barrier are the same everywhere. Bound by `penstock.operators.process_states`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from penstock.core.errors import StateMismatchError, UsageError
from penstock.core.evolution import NAME, fits_by_name, shown_by_name
from penstock.core.names import near
from penstock.core.schema import schema_from_text
from penstock.operators.process_collections import ObjectCodec
from penstock.operators.state_cells import PLAIN, Declaration
from penstock.state.row_columns import plain_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compile import I32
    from penstock.operators.process_function import ProcessContext
    from penstock.operators.process_states import StateConfig, StateTypes

K = TypeVar("K")
V = TypeVar("V")
#: Name of the operator state that holds all broadcast states of an operator.
BROADCAST = "broadcast"


class BroadcastEntries:
    """Entries of a `BroadcastState`, and whether they may be changed now."""

    __slots__ = ("entries", "name", "writable")

    def __init__(self, name: str = "") -> None:
        """Empty; a declaration learns its name when its class is made."""
        self.name = name
        self.entries: dict[Any, Any] = {}
        self.writable = False


class BroadcastState(Generic[K, V]):
    """A map that is the same in every subtask: `rules: ps.BroadcastState[str, Rule] = ps.broadcast_state()`."""

    __slots__ = ("_declaration", "_entries", "_held")

    def __init__(self, held: BroadcastEntries) -> None:
        """Made by `ps.broadcast_state` as a declaration, and by the operator for its subtask."""
        self._declaration: Declaration = PLAIN
        self._held = held
        self._entries: dict[K, V] = held.entries

    def __set_name__(self, owner: type, name: str) -> None:
        self._held.name = name

    def get(self, key: K) -> V | None:
        """Return a key's value; None when it has none."""
        return self._entries.get(key)

    def contains(self, key: K) -> bool:
        """Return whether a key has a value."""
        return key in self._entries

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all keys with their values; do not change the state meanwhile."""
        return iter(self._entries.items())

    def put(self, key: K, value: V) -> None:
        """Set a key's value; only in `process_broadcast`."""
        self._changing()[key] = value

    def remove(self, key: K) -> None:
        """Take a key out; only in `process_broadcast`."""
        self._changing().pop(key, None)

    def clear(self) -> None:
        """Take all keys out; only in `process_broadcast`."""
        self._changing().clear()

    def _changing(self) -> dict[K, V]:
        if not self._held.writable:
            msg = f"broadcast state {self._held.name!r} can only be changed in process_broadcast"
            raise UsageError(msg, hint="the rows of a key are seen by one subtask, and the state must be alike in all")
        return self._entries


def broadcast_state() -> BroadcastState[Any, Any]:
    """Declare a broadcast state: `rules: ps.BroadcastState[str, Rule] = ps.broadcast_state()`.

    Types of keys and values are those of `ps.map_state`.
    """
    return BroadcastState(BroadcastEntries())


class BroadcastContext:
    """What `process_broadcast` knows besides the row and the broadcast state: there is no key."""

    __slots__ = ("_context",)

    def __init__(self, context: ProcessContext) -> None:
        """Made by the operator."""
        self._context = context

    @property
    def timestamp(self) -> int | None:
        """Event time of the row in microseconds since the epoch; None without event time."""
        time: int | None = self._context.timestamp
        return time

    @property
    def watermark(self) -> int:
        """The current watermark in microseconds since the epoch."""
        return self._context.watermark

    @property
    def processing_time(self) -> int:
        """The machine's clock in microseconds since the epoch."""
        return self._context.processing_time

    def side(self, tag: str, row: Any) -> None:
        """Emit a row to a side output."""
        self._context.side(tag, row)


class BoundBroadcast:
    """A broadcast state of one subtask."""

    def __init__(self, name: str, declared: StateConfig, types: StateTypes) -> None:
        """Empty; `restore` fills it."""
        self.name = name
        self._held = BroadcastEntries(name)
        self.handle: BroadcastState[Any, Any] = BroadcastState(self._held)
        assert declared.keys is not None  # noqa: S101 - the API has read them
        self._keys = ObjectCodec(declared.keys, types.keys, f"{declared.where}: key")
        self._values = ObjectCodec(declared.values, types.values, declared.where)
        self._where, self._width = declared.where, len(declared.keys)
        #: Columns in a snapshot; their metadata says what the fields are called.
        self._schema = _saved_schema(declared.keys, declared.values)

    def begin(self, slots: I32) -> None:
        """The next calls are for rows of keys, whatever keys these are."""
        del slots
        self._held.writable = False

    def begin_broadcast(self) -> None:
        """The next calls are for rows of the broadcast stream."""
        self._held.writable = True

    def write_back(self) -> None:
        """Nothing is to be saved by key."""

    def saved(self) -> dict[str, str]:
        """Return the entries as an item of an operator state: an Arrow IPC stream, base64."""
        entries = self._held.entries
        if not entries:
            return {"state": self.name, "rows": ""}
        arrays = [*self._keys.encode(list(entries))[0], *self._values.encode(list(entries.values()))[0]]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        return {"state": self.name, "rows": base64.b64encode(sink.getvalue()).decode()}

    def restore(self, item: dict[str, str]) -> None:
        """Take up what `saved` has returned.

        Raises:
            StateMismatchError: its keys or values had other fields.
        """
        if not item["rows"]:
            return
        reader = pa.ipc.open_stream(base64.b64decode(item["rows"]))
        if not fits_by_name(reader.schema, self._schema):
            msg = f"{self._where}: broadcast state was saved with ({shown_by_name(reader.schema)}), the job keeps "
            msg += f"({shown_by_name(self._schema)})"
            raise StateMismatchError(msg, hint="keep the fields of its keys and values, or give the operator a new uid")
        for rows in reader:
            columns = [plain_values(column) for column in rows.columns]
            keys, values = self._keys.decode(columns[: self._width]), self._values.decode(columns[self._width :])
            self._held.entries.update(zip(keys, values, strict=True))


def require_declared(saved: dict[str, dict[str, str]], bound: Sequence[object], where: str) -> None:
    """Check that no entries of a snapshot are left over.

    Raises:
        StateMismatchError: they are of a state that is not among the bound ones.
    """
    names = [state.name for state in bound if isinstance(state, BoundBroadcast)]
    for name, item in saved.items():
        if item["rows"] and name not in names:
            msg = f"{where}: the snapshot holds broadcast state {name!r}, which the function does not declare"
            raise StateMismatchError(msg, hint=f"declare it ({near(name, names)}), or give the operator a new uid")


def broadcast_schema(keys: str, values: pa.Schema) -> pa.Schema:
    """Return the columns of a broadcast state in a snapshot; `keys` is the schema of its keys as text."""
    return _saved_schema(schema_from_text(keys), values)


def _saved_schema(keys: pa.Schema, values: pa.Schema) -> pa.Schema:
    return pa.schema([*_columns("key", keys), *_columns("value", values)])


def _columns(prefix: str, fields: pa.Schema) -> list[pa.Field]:
    return [pa.field(f"{prefix}_{i}", f.type, True, {NAME: f.name.encode()}) for i, f in enumerate(fields)]
