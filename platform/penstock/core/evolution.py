"""Schema evolution: which changes of a state's columns, aggregates and joins a restore accepts.

Decides for a restore and for `penstock check`; converts rows of older files when they are read.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.errors import StateMismatchError
from penstock.core.structs import prepare

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

#: Keys of a schema's metadata: its value columns may change; the highest id ever assigned.
EVOLVES, LAST_ID = b"evolves", b"last_id"
DEFAULT, INITIAL, WAS, NULL, FILLS = b"default", b"initial", b"was", b"null", b"fills"
#: Keys: in the schema of an operator state, how a rescale distributes it; in a column of a broadcast state, its field's
#: name.
MODE, NAME = b"mode", b"name"
#: Keys of a declared schema: the columns that a registered migration takes (as text), and its function's name.
MIGRATES, MIGRATES_BY = b"migrates", b"migrates_by"
#: Field ids of the columns of a key, of those that distinguish the rows of a key and namespace, and of values.
KEY_IDS, ENTRY_IDS, FIRST_VALUE_ID = range(101, 501), range(501, 1001), 1001


@dataclass(frozen=True, slots=True)
class Evolution:
    """The decision about the value columns."""

    #: Field ids of the wanted value columns, in their order.
    ids: tuple[int, ...]
    #: Ids up to this one are never assigned again.
    last_id: int
    #: Metadata carried over from the saved columns, in the same order.
    carried: tuple[dict[bytes, bytes], ...]
    #: The changes in words; empty if there are none.
    changes: tuple[str, ...]


#: Of a state that no snapshot has.
UNSAVED = Evolution((), 0, (), ())


def evolve(saved: pa.Schema, wanted: pa.Schema) -> Evolution:
    """Return how rows of `saved` become rows of `wanted`, both the columns of a state's files.

    Raises:
        StateMismatchError: they cannot without losing values; the message begins with the column.
    """
    if _fixed(saved) != _fixed(wanted):
        if _untimed(saved) == _untimed(wanted):
            raise StateMismatchError("it had a time-to-live and has none, or the reverse")
        if _shown(saved) == _shown(wanted):
            raise StateMismatchError("it was a list or map and is a value", hint="give the state another name")
        raise StateMismatchError(f"the key was ({_shown(saved)}), the job has ({_shown(wanted)})")
    old = {field.name: field for field in saved if field_id(field) >= FIRST_VALUE_ID}
    new = [field for field in wanted if field_id(field) >= FIRST_VALUE_ID]
    last = max([int((saved.metadata or {}).get(LAST_ID, b"0")), FIRST_VALUE_ID - 1, *map(field_id, old.values())])
    pairs = {field.name: old.pop(field.name) for field in new if field.name in old}
    for field in new:
        was = _text(field, WAS)
        if field.name not in pairs and was in pairs:
            msg = f"{field.name} was {was}, and the job has a new field {was}"
            raise StateMismatchError(msg, hint=f"rename in two steps: first without the new {was}, which comes later")
        if field.name not in pairs and was in old:
            pairs[field.name] = old.pop(was)
    ids: list[int] = []
    carried: list[dict[bytes, bytes]] = []
    changes: list[str] = []
    for field in new:
        before = pairs.get(field.name)
        if before is None:
            last += 1
            ids.append(last)
            carried.append({})
            changes.append(_added(field))
        else:
            ids.append(field_id(before))
            changes += _changed(before, field)
            carried.append(_carried(before, field))
    changes += [f"drops {name}" for name in old]
    return Evolution(tuple(ids), last, tuple(carried), tuple(changes))


def is_migrated(saved: pa.Schema, wanted: pa.Schema, was: pa.Schema) -> bool:
    """Return whether a migration that takes values of the columns `was` fits: keys and all else are the same."""
    taken = [(field.name, field.type) for field in saved if field_id(field) >= FIRST_VALUE_ID]
    kept = [(field.name, field.type) for field in wanted if field_id(field) >= FIRST_VALUE_ID]
    return _fixed(saved) == _fixed(wanted) and taken == list(zip(was.names, was.types, strict=True)) != kept


def conform_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a file with the columns of `schema`: found by id, cast, missing ones filled with defaults.

    Raises:
        pyarrow.ArrowException: a column cannot be cast.
        StateMismatchError: a column that is no value is missing.
    """
    import pyarrow as pa

    if _shape(table.schema) == _shape(schema):
        return table.cast(schema)
    places = {field_id(field): place for place, field in enumerate(table.schema)}
    columns = []
    for field in schema:
        fills = _fills(field)
        if field_id(field) not in places:
            if field_id(field) < FIRST_VALUE_ID:
                raise StateMismatchError(f"a file of state has no column {field.name!r}", hint="`penstock state fsck`")
            text = _initial(field) or (fills[0] if fills else b"")
            columns.append(pa.repeat(_value(text, field.type), table.num_rows))
            continue
        place = places[field_id(field)]
        column, later = table.column(place).cast(field.type), fills[len(_fills(table.schema.field(place))) :]
        if later and column.null_count:
            column = column.fill_null(_value(later[0], field.type))
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def value_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns that may change: all but those of keys and positions."""
    import pyarrow as pa

    return pa.schema([field for field in schema if field_id(field) >= FIRST_VALUE_ID], schema.metadata)


def field_id(field: pa.Field) -> int:
    """Return a column's id, 0 without one."""
    return int((field.metadata or {}).get(b"id", b"0"))


def fits_by_name(saved: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether the columns of a broadcast state are the same; those saved without field names compare by type."""
    same = saved.names == wanted.names and saved.types == wanted.types
    return same and all(_name(old) in ("", _name(new)) for old, new in zip(saved, wanted, strict=True))


def shown_by_name(schema: pa.Schema) -> str:
    """Return the fields of a broadcast state as readable text."""
    return ", ".join(f"{_name(field) or field.name} {field.type}" for field in schema)


def _name(field: pa.Field) -> str:
    return _text(field, NAME) or ""


def default_text(value: Any, data_type: pa.DataType) -> bytes:
    """Return a default in the form of a column's metadata.

    Raises:
        pyarrow.ArrowException: it is not of the type.
    """
    import pyarrow as pa

    from penstock.core.schema import rows_to_text  # it imports pydantic, which a JobManager does without

    return rows_to_text(pa.record_batch([pa.array([value], data_type)], ["default"])).encode()


def _value(text: bytes, data_type: pa.DataType) -> Any:
    """Return a text of `default_text` as a scalar of a type; null for an empty text."""
    import pyarrow as pa

    if not text:
        return pa.scalar(None, data_type)
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))) as stream:
        return stream.read_all().column(0)[0].cast(data_type)


def _default(field: pa.Field) -> Any:
    """Return a column's default as a Python value, None without one."""
    return _value((field.metadata or {}).get(DEFAULT, b""), field.type).as_py()


def _initial(field: pa.Field) -> bytes:
    """Return the value in rows older than the column: its default when it was added, empty without one."""
    more = field.metadata or {}
    text: bytes = more.get(INITIAL, more.get(DEFAULT, b""))
    return text


def _fills(field: pa.Field) -> list[bytes]:
    text = (field.metadata or {}).get(FILLS)
    return text.split(b",") if text else []


def _carried(before: pa.Field, field: pa.Field) -> dict[bytes, bytes]:
    """Return the metadata a column keeps for the rows of older files, which are read by it while they exist."""
    fills = _fills(before)
    if _loses_none(before, field):
        fills.append(field.metadata[DEFAULT])
    carried = {FILLS: b",".join(fills)} if fills else {}
    if _initial(before) != _initial(field):
        carried[INITIAL] = _initial(before)
    return carried


def _loses_none(before: pa.Field, field: pa.Field) -> bool:
    return _text(before, NULL) is not None and _text(field, NULL) is None


def _added(field: pa.Field) -> str:
    default = _default(field)
    if default is not None:
        return f"adds {field.name} = {default!r}"
    if _text(field, NULL) is not None:
        return f"adds {field.name} = None"
    msg = f"{field.name} ({field.type}) was added without a default, and it cannot be None"
    kind = str(field.type)
    example = {"bool": "False", "binary": 'b""', "large_binary": 'b""'}.get(kind, '""' if "string" in kind else "0")
    raise StateMismatchError(msg, hint=f"give it one: {field.name}: ... = {example}, or write `| None`")


def _changed(before: pa.Field, field: pa.Field) -> list[str]:
    changes = [] if before.name == field.name else [f"renames {before.name} to {field.name}"]
    if before.type != field.type:
        if not widens(before.type, field.type):
            msg = f"{field.name} was {before.type} and is {field.type}, which cannot hold all its values"
            way = "give the new column another name, or rewrite the state with ps.snapshots.read and write"
            raise StateMismatchError(msg, hint=way)
        changes.append(f"widens {field.name} from {before.type} to {field.type}")
    if _loses_none(before, field):
        default = _default(field)
        if default is None:
            msg = f"{field.name} could be None and can no longer be"
            raise StateMismatchError(msg, hint="give it a default, which replaces None")
        changes.append(f"{field.name}: None becomes {default!r}")
    return changes


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether the new type holds every value of the old: wider integers, floats, decimals of the same scale."""
    import pyarrow.types as pt

    if pt.is_integer(old) and pt.is_integer(new):
        if pt.is_signed_integer(old):
            return bool(pt.is_signed_integer(new) and new.bit_width >= old.bit_width)
        return bool(new.bit_width > old.bit_width or (new.bit_width == old.bit_width and pt.is_unsigned_integer(new)))
    if pt.is_floating(old) and pt.is_floating(new):
        return bool(new.bit_width >= old.bit_width)
    if pt.is_decimal(old) and pt.is_decimal(new):
        return bool(new.scale == old.scale and new.precision >= old.precision)
    return False


def _fixed(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema if field_id(field) < FIRST_VALUE_ID]


def _untimed(schema: pa.Schema) -> list[tuple[str, str]]:
    return [field for field in _fixed(schema) if field[0] != "__ttl"]


def _shape(schema: pa.Schema) -> list[tuple[str, str, int, int]]:
    return [(field.name, str(field.type), field_id(field), len(_fills(field))) for field in schema]


def _shown(schema: pa.Schema) -> str:
    fields = [f for f in schema if field_id(f) < FIRST_VALUE_ID and not f.name.startswith("__")]
    return ", ".join(f"{f.name} {f.type}" for f in fields)


def _text(field: pa.Field, name: bytes) -> str | None:
    found = (field.metadata or {}).get(name)
    return None if found is None else found.decode()


#: Keys of a schema's metadata: the parts of its aggregates; the window whose state it is.
AGGREGATES, WINDOW = b"aggregates", b"window"
#: Key of a column's metadata: it was added when rows existed.
ADDED_LATER = b"late"


class AggregatePart(msgspec.Struct, frozen=True):
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


prepare(AggregatePart)


def aggregates_metadata(parts: Iterable[AggregatePart], window: str) -> dict[bytes, bytes]:
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
    late = {field.name for field in saved if ADDED_LATER in (field.metadata or {})}
    for part in msgspec.json.decode(metadata[AGGREGATES], type=tuple[AggregatePart, ...]):
        _check(part, had, late)
    found = evolve(saved, wanted)
    values = [field.name for field in wanted if field_id(field) >= FIRST_VALUE_ID]
    carried = tuple(
        {**more, ADDED_LATER: b"1"} if name in late or name not in had else more
        for name, more in zip(values, found.carried, strict=True)
    )
    changes = [change for change in found.changes if not change.startswith(("adds ", "drops "))]
    changes += [f"adds {name}, from rows after the restore" for name in _named(set(wanted.names) - had, wanted)]
    changes += [f"drops {name}" for name in _named(had - set(wanted.names), saved)]
    return Evolution(found.ids, found.last_id, carried, tuple(changes))


def _check(part: AggregatePart, had: set[str], late: set[str]) -> None:
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


#: Keys of a schema's metadata: how the join pairs rows; the sides (`0`, `1`) whose unmatched rows are emitted too.
JOIN, UNMATCHED = b"join", b"alone"


def require_same_join(saved: pa.Schema, wanted: pa.Schema) -> None:
    """Check that the rows of a join's side fit the job's join; a schema without a join passes.

    Raises:
        StateMismatchError: the join differs, or has outer rows that the saved one did not track.
    """
    had, has = saved.metadata or {}, wanted.metadata or {}
    if JOIN not in had or JOIN not in has:
        return
    if had[JOIN] != has[JOIN]:
        msg = f"it is the state of a join {had[JOIN].decode()}, the job has a join {has[JOIN].decode()}"
        raise StateMismatchError(msg, hint="give the operator a new uid")
    if set(has[UNMATCHED]) - set(had[UNMATCHED]):
        msg = "this side of the join was inner; its state does not record which rows matched, so it cannot become outer"
        raise StateMismatchError(msg, hint="give the operator a new uid")
