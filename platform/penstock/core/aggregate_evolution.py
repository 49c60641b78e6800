"""Which other aggregates a window or a running aggregate may go on with: decided by what each one is made of.

State is accumulators by function and column (`sum_amount`), not by output column: renaming that changes nothing. One
that is new begins with the rows to come; whether an aggregate may, the plan of the operator says in the metadata of the
state's schema (`Part`). Called at a restore and by `penstock check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import StateMismatchError
from penstock.core.evolution import EVOLVES, FIRST_VALUE_ID, Evolution, evolve, field_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

#: In a schema's metadata: what its aggregates are made of; which window it is the state of.
AGGREGATES, WINDOW = b"aggregates", b"window"
#: In a column's: it was added to rows that were there.
LATE = b"late"


class Part(msgspec.Struct, frozen=True):
    """One aggregate: the columns it is computed from."""

    #: As it is written, such as `min(amount)`.
    what: str
    columns: tuple[str, ...]
    #: Number of the values, where the column may be null; else empty.
    count: str = ""
    #: Whether it may begin between two rows without a count of its own.
    late: bool = False
    #: Whether it divides by the number of all rows, so that its columns must have seen all of them.
    whole: bool = False
    #: What the state has where the column may be null, and must not have had.
    absent: str = ""


def aggregates_metadata(parts: Iterable[Part], window: str) -> dict[bytes, bytes]:
    """Return what a state's schema says of its aggregates."""
    return {EVOLVES: b"1", AGGREGATES: msgspec.json.encode(tuple(parts)), WINDOW: window.encode()}


def require_same_window(saved: pa.Schema, wanted: pa.Schema) -> None:
    """Check that both are the state of the same windows; of what says nothing of windows nothing is asked.

    Raises:
        StateMismatchError: the windows are others.
    """
    had, has = ((schema.metadata or {}).get(WINDOW) for schema in (saved, wanted))
    if had is not None and has is not None and had != has:
        msg = f"it is of windows of {had.decode()}, the job has {has.decode()}"
        raise StateMismatchError(msg, hint="give the operator a new uid")


def evolve_state(saved: pa.Schema, wanted: pa.Schema) -> Evolution:
    """As `core.evolution.evolve`; where the state is of aggregates, whether each of them can go on, too.

    Raises:
        StateMismatchError: one cannot, or the window is another one.
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
    changes += [f"adds {name}, from the next row on" for name in _named(set(wanted.names) - had, wanted)]
    changes += [f"drops {name}" for name in _named(had - set(wanted.names), saved)]
    return Evolution(found.ids, found.last_id, carried, tuple(changes))


def _check(part: Part, had: set[str], late: set[str]) -> None:
    new_uid = "give the operator a new uid"
    if part.absent in had:
        raise StateMismatchError(f"{part.what}: its column could be null, and no longer can", hint=new_uid)
    way = f"add it with .where(pl.lit(True)), which begins as null, or {new_uid}"
    if all(name in had for name in part.columns):
        if part.whole and late.intersection(part.columns):
            raise StateMismatchError(f"{part.what} is new, and what it is made of has not seen all rows", hint=way)
        if part.count and part.count not in had:
            raise StateMismatchError(f"{part.what}: its column could not be null, and now can", hint=new_uid)
        return
    if part.count not in had if part.count else part.late:
        return
    raise StateMismatchError(f"{part.what} is new, and cannot be computed for the rows before", hint=way)


def _named(columns: set[str], schema: pa.Schema) -> list[str]:
    """Return accumulators by name, in the order of the schema; some have several columns."""
    return list(dict.fromkeys(name.partition(".")[0] for name in schema.names if name in columns))
