"""Rules for changed aggregates: which ones a window or a running aggregate may restore.

State holds accumulators by function and column (`sum_amount`), not by output column, so output columns may be renamed.
A new accumulator starts with the rows after the restore. Whether an aggregate may do so is in the metadata of the
state's schema (`Part`), written by the plan of the operator. Called at a restore and by `penstock check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import StateMismatchError
from penstock.core.evolution import EVOLVES, FIRST_VALUE_ID, Evolution, evolve, field_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

#: Keys of a schema's metadata: the parts of its aggregates; the window whose state it is.
AGGREGATES, WINDOW = b"aggregates", b"window"
#: Key of a column's metadata: it was added when rows existed.
LATE = b"late"


class Part(msgspec.Struct, frozen=True):
    """One aggregate: the columns it is computed from."""

    #: The aggregate as written, such as `min(amount)`.
    what: str
    columns: tuple[str, ...]
    #: Column with the number of values, if the aggregated column may be null; else empty.
    count: str = ""
    #: Whether it may start between two rows without a count for itself.
    late: bool = False
    #: Whether it divides by the number of all rows, so that its columns must cover all of them.
    whole: bool = False
    #: The column that the state has if the aggregated column may be null, and must not have had.
    absent: str = ""


def aggregates_metadata(parts: Iterable[Part], window: str) -> dict[bytes, bytes]:
    """Return the metadata of a state's schema that describes its aggregates."""
    return {EVOLVES: b"1", AGGREGATES: msgspec.json.encode(tuple(parts)), WINDOW: window.encode()}


def require_same_window(saved: pa.Schema, wanted: pa.Schema) -> None:
    """Check that both are the state of the same windows; a schema without windows passes.

    Raises:
        StateMismatchError: the windows differ.
    """
    had, has = ((schema.metadata or {}).get(WINDOW) for schema in (saved, wanted))
    if had is not None and has is not None and had != has:
        msg = f"it is the state of windows of {had.decode()}, the job has {has.decode()}"
        raise StateMismatchError(msg, hint="give the operator a new uid")


def evolve_state(saved: pa.Schema, wanted: pa.Schema) -> Evolution:
    """Evolve a state as `core.evolution.evolve`; for aggregates, also check that each can be restored.

    Raises:
        StateMismatchError: one cannot, or the window differs.
    """
    metadata = wanted.metadata or {}
    if AGGREGATES not in metadata:
        return evolve(saved, wanted)
    require_same_window(saved, wanted)
    had = set(saved.names)
    late = {field.name for field in saved if LATE in (field.metadata or {})}
    for part in msgspec.json.decode(metadata[AGGREGATES], type=tuple[Part, ...]):
        _check(part, had, late)
    found = evolve(saved, wanted)
    values = [field.name for field in wanted if field_id(field) >= FIRST_VALUE_ID]
    carried = tuple(
        {**more, LATE: b"1"} if name in late or name not in had else more
        for name, more in zip(values, found.carried, strict=True)
    )
    changes = [change for change in found.changes if not change.startswith(("adds ", "drops "))]
    changes += [f"adds {name}, from rows after the restore" for name in _named(set(wanted.names) - had, wanted)]
    changes += [f"drops {name}" for name in _named(had - set(wanted.names), saved)]
    return Evolution(found.ids, found.last_id, carried, tuple(changes))


def _check(part: Part, had: set[str], late: set[str]) -> None:
    new_uid = "give the operator a new uid"
    if part.absent in had:
        raise StateMismatchError(f"{part.what}: its column could be null, and no longer can", hint=new_uid)
    way = f"add it with .where(pl.lit(True)), which begins as null, or {new_uid}"
    if all(name in had for name in part.columns):
        if part.whole and late.intersection(part.columns):
            raise StateMismatchError(f"{part.what} was added, but the columns it needs do not cover all rows", hint=way)
        if part.count and part.count not in had:
            raise StateMismatchError(f"{part.what}: its column could not be null, and now can", hint=new_uid)
        return
    if part.count not in had if part.count else part.late:
        return
    raise StateMismatchError(f"{part.what} was added; the snapshot does not hold its value for earlier rows", hint=way)


def _named(columns: set[str], schema: pa.Schema) -> list[str]:
    """Return the names of the accumulators, in the order of the schema; some have several columns."""
    return list(dict.fromkeys(name.partition(".")[0] for name in schema.names if name in columns))
