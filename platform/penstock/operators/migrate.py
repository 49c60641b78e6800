"""`ps.migrate`: a function of one's own that makes values of an older version of the job those of today.

Declared with `migrate=` of `ps.value_state`, `list_state` and `map_state`; bound by
`penstock.operators.process_states`, run when state is restored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.errors import StateMismatchError
from penstock.core.schema import schema_from_text
from penstock.operators.functions import user_error
from penstock.state.migration import Migration

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from penstock.operators.process_values import ValueCodec


@dataclass(frozen=True, slots=True)
class MigrateValues:
    """A registered migration; made by `ps.migrate`."""

    function: Callable[[dict[str, Any]], Any]
    #: The type that the values had.
    was: Any

    @property
    def by(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def migrate(function: Callable[[dict[str, Any]], Any], *, was: Any) -> MigrateValues:
    """Register a migration: `total: ps.ValueState[Money] = ps.value_state(migrate=ps.migrate(to_money, was=int))`.

    `was` is the type that the values had in the version before (as it stood in the annotation of the state); `function`
    is given each of these values as a dictionary by field (`{"value": 7}` of a plain type, `f0`, `f1`... of a tuple)
    and returns the value of today, or None, which removes it. It runs when a snapshot with exactly these fields is
    restored, and only then. Lists and maps have them too, for each element and each value of an entry (map keys stay as
    they are): `ps.list_state(migrate=...)`, `ps.map_state(migrate=...)`.
    """
    return MigrateValues(function, was)


def keeps_all(migration: Migration, where: str) -> Migration:
    """Return the migration of a list with a time-to-live, whose elements expire in their order: none may go."""
    convert = migration.convert

    def all_of(old: list[dict[str, Any]]) -> tuple[np.ndarray, list[pa.Array]]:
        stay, columns = convert(old)
        if not stay.all():
            msg = f"{where}: migration {migration.by} leaves out an element of a list with a time-to-live"
            raise StateMismatchError(msg, hint="return something in its place, and leave that out where it is read")
        return stay, columns

    return dataclasses.replace(migration, convert=all_of)


def migration_of(was: str | None, function: Any, codec: ValueCodec, where: str) -> Migration | None:
    """Return the migration of a state as its table takes it; `was` are the old columns as text, None without one."""
    if was is None:
        return None
    made: MigrateValues = function

    def convert(old: list[dict[str, Any]]) -> tuple[np.ndarray, list[pa.Array]]:
        try:
            new = [made.function(value) for value in old]
        except Exception as error:
            raise user_error(f"{where}: migration {made.by}", error) from error
        stay = np.fromiter((value is not None for value in new), np.bool_, len(new))
        kept = [value for value in new if value is not None]
        return stay, codec.encode(kept) if kept else []

    columns = schema_from_text(was)
    return Migration(columns, made.by, tuple(columns.names), convert)
