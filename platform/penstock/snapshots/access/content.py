"""The content of a snapshot: its states by uid and name, with sizes and columns, from its manifest.

Called by `ps.snapshots.read` and the commands on snapshots; reads no file of state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.checkpoint.manifest_log import Manifest
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.errors import NotFoundError, UsageError, did_you_mean
from penstock.core.evolution import ENTRY_IDS, FIRST_VALUE_ID, KEY_IDS, field_id
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import KeyedStateSnapshot, OperatorStateSnapshot
from penstock.core.state_names import shown_name, stored_name
from penstock.state.log.segment_columns import NAMESPACE, ROW

if TYPE_CHECKING:
    import pyarrow as pa

_IDS = {"key": KEY_IDS, "entry": ENTRY_IDS, "value": range(FIRST_VALUE_ID, 1 << 31)}
#: Prefix of the engine's own states next to a user's: timers, the watermark of an input.
_OWN = "__"
#: Key under which operators save their watermark.
_MARK = "watermark"


@dataclass(frozen=True, slots=True)
class StateContent:
    """One state of one operator, all its subtasks together."""

    uid: str
    name: str
    kind: Literal["keyed", "operator"]
    keyed: tuple[KeyedStateSnapshot, ...] = ()
    #: (subtask, its part).
    operator: tuple[tuple[int, OperatorStateSnapshot], ...] = ()

    @property
    def schema(self) -> pa.Schema | None:
        """Return the columns of a keyed state's files."""
        return schema_from_text(self.keyed[0].schema) if self.keyed else None

    @property
    def rows(self) -> int:
        """Return the rows in its files, including those that a newer one replaces or a tombstone hides."""
        return sum(s.rows for k in self.keyed for s in k.segments) + sum(len(o.items) for _, o in self.operator)

    @property
    def files(self) -> int:
        """Return the number of its segments."""
        return sum(len(k.segments) for k in self.keyed)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its segments."""
        return sum(s.file.length for k in self.keyed for s in k.segments)

    def columns(self, what: Literal["key", "entry", "value"]) -> list[str]:
        """Return `name type` of the columns of a keyed state: its keys, a list's or map's entries, its values."""
        return [f"{f.name} {f.type}" for f in self.schema or () if field_id(f) in _IDS[what]]

    @property
    def identity(self) -> list[str]:
        """Return the columns of `ps.snapshots.read` that identify its rows."""
        return ["__subtask", "__index"] if self.schema is None else identity_of(self.schema)

    def as_json(self) -> dict[str, object]:
        """Return the entry of a listing."""
        return {
            "uid": self.uid,
            "state": self.name,
            "kind": self.kind,
            "key": self.columns("key") + self.columns("entry"),
            "value": self.columns("value"),
            "subtasks": len(self.keyed) + len(self.operator),
            "files": self.files,
            "rows": self.rows,
            "bytes": self.size_bytes,
        }


def identity_of(schema: pa.Schema) -> list[str]:
    """Return the columns that identify the live rows of a keyed state."""
    named = (*_IDS["key"], *_IDS["entry"])
    return [f.name for f in schema if field_id(f) in named or f.name in (NAMESPACE, ROW)]


def states_of(manifest: Manifest) -> tuple[StateContent, ...]:
    """Return all states of a snapshot, by uid and name."""
    keyed: dict[tuple[str, str], list[KeyedStateSnapshot]] = {}
    operator: dict[tuple[str, str], list[tuple[int, OperatorStateSnapshot]]] = {}
    for part in manifest.subtasks:
        for state in part.keyed:
            keyed.setdefault((state.uid, state.state), []).append(state)
        for other in part.operator:
            operator.setdefault((other.uid, other.name), []).append((part.subtask, other))
    found = [StateContent(*place, "keyed", keyed=tuple(parts)) for place, parts in keyed.items()]
    found += [StateContent(*place, "operator", operator=tuple(parts)) for place, parts in operator.items()]
    return tuple(sorted(found, key=lambda state: (state.uid, state.name)))


def watermark_of(manifest: Manifest) -> int | None:
    """Return the event time of the snapshot (us): no later window or timer had fired; None: no watermark.

    It is the largest watermark of windows and functions; without any, the smallest of the sources.
    """
    states = [state for part in manifest.subtasks for state in part.operator if not state.schema]
    seen = [item[_MARK] for state in states for item in state.items if isinstance(item, dict) and _MARK in item]
    sent = [item for state in states if state.name == _MARK for item in state.items if isinstance(item, int)]
    known = [mark for mark in seen or sent if MIN_TIMESTAMP < mark < MAX_TIMESTAMP]
    return (max if seen else min)(known, default=None)


def find_state(manifest: Manifest, uid: str, name: str | None) -> StateContent:
    """Return one state, by its stored name or that for users.

    The name is optional if the operator has only one state apart from the engine's own.

    Raises:
        NotFoundError: there is none of that uid or name; names the nearest.
        UsageError: the operator has several states and none is named.
    """
    states = states_of(manifest)
    own = [state for state in states if state.uid == uid]
    if not own:
        msg = f"the snapshot has no state of uid {uid!r}"
        raise NotFoundError(msg, hint=did_you_mean(uid, dict.fromkeys(state.uid for state in states)))
    if name is not None:
        by_name = {state.name: state for state in own}
        found = by_name.get(stored_name(name, by_name))
        if found is None:
            msg = f"{uid!r} has no state {name!r}"
            raise NotFoundError(msg, hint=did_you_mean(name, [shown_name(stored) for stored in by_name]))
        return found
    users = [state for state in own if not state.name.startswith(_OWN)]
    if len(users or own) > 1:
        msg = f"{uid!r} has {len(own)} states"
        raise UsageError(msg, hint=f"name one of them: {', '.join(shown_name(state.name) for state in own)}")
    return (users or own)[0]
