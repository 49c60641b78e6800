"""`ps.migrate`: a function of one's own that makes values of an older version of the job those of today.

Declared with `migrate=` of `ps.value_state`, `list_state` and `map_state`; `table_migration` makes of it what the
state's table runs when it is restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
