"""A broadcast state of one subtask and its form in a snapshot.

The state is Python objects in memory. A snapshot stores it as one operator state of the first subtask, and every
subtask restores it: the rows up to a barrier are equal in all subtasks. Made by
`penstock.operators.process.keyed_process`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.errors import StateMismatchError, did_you_mean
from penstock.core.evolution import NAME, fits_by_name, shown_by_name
from penstock.core.schema import rows_to_text, schema_from_text
from penstock.functions.broadcast_state import BroadcastEntries, BroadcastState
from penstock.kernels.rows.python_values import plain_values
from penstock.operators.process.collection_binding import ObjectCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I32
    from penstock.operators.process.state_binding import StateConfig, StateTypes


class BoundBroadcast:
    """A broadcast state of one subtask."""

    def __init__(self, name: str, declared: StateConfig, types: StateTypes) -> None:
        """Make an empty state; `restore` fills it."""
        self.name = name
        self._held = BroadcastEntries(name)
        self.handle: BroadcastState[Any, Any] = BroadcastState(self._held)
        assert declared.keys is not None  # noqa: S101 - the API has set them
        self._keys = ObjectCodec(declared.keys, types.keys, f"{declared.where}: key")
        self._values = ObjectCodec(declared.values, types.values, declared.where)
        self._where, self._width = declared.where, len(declared.keys)
        #: Columns in a snapshot; their metadata holds the names of the fields.
        self._schema = _saved_schema(declared.keys, declared.values)

    def begin(self, slots: I32) -> None:
        """Start a batch of keyed rows, with any keys."""
        del slots
        self._held.writable = False

    def begin_broadcast(self) -> None:
        """Start a batch of the broadcast stream."""
        self._held.writable = True

    def write_back(self) -> None:
        """Do nothing: no state by key has to be saved."""

    def saved(self) -> dict[str, str]:
        """Return the entries as an item of an operator state: an Arrow IPC stream, base64."""
        entries = self._held.entries
        if not entries:
            return {"state": self.name, "rows": ""}
        arrays = [*self._keys.encode(list(entries))[0], *self._values.encode(list(entries.values()))[0]]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return {"state": self.name, "rows": rows_to_text(rows)}

    def restore(self, item: dict[str, str]) -> None:
        """Restore a result of `saved`.

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
    """Check that all broadcast state of a snapshot is declared.

    Raises:
        StateMismatchError: an entry's state is not among the bound ones.
    """
    names = [state.name for state in bound if isinstance(state, BoundBroadcast)]
    for name, item in saved.items():
        if item["rows"] and name not in names:
            msg = f"{where}: the snapshot holds broadcast state {name!r}, which the function does not declare"
            raise StateMismatchError(
                msg, hint=f"declare it ({did_you_mean(name, names)}), or give the operator a new uid"
            )


def broadcast_schema(keys: str, values: pa.Schema) -> pa.Schema:
    """Return the schema of a broadcast state in a snapshot; `keys` is the schema of its keys as text."""
    return _saved_schema(schema_from_text(keys), values)


def _saved_schema(keys: pa.Schema, values: pa.Schema) -> pa.Schema:
    return pa.schema([*_columns("key", keys), *_columns("value", values)])


def _columns(prefix: str, fields: pa.Schema) -> list[pa.Field]:
    return [pa.field(f"{prefix}_{i}", f.type, True, {NAME: f.name.encode()}) for i, f in enumerate(fields)]
