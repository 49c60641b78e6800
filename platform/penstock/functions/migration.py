"""`ps.migrate`: a user-defined function that converts state values of an older version of the job to the present type.

Declared with `migrate=` of `ps.value_state`, `list_state` and `map_state`; `state_binding.migration_of` builds the
function that the state's table runs when it is restored.
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
    #: The former type of the values.
    was: Any

    @property
    def by(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def migrate(function: Callable[[dict[str, Any]], Any], *, was: Any) -> MigrateValues:
    """Register a migration: `total: ps.ValueState[Money] = ps.value_state(migrate=ps.migrate(to_money, was=int))`.

    `was` is the type of the values in the previous version, as in the annotation of the state. `function` receives each
    of these values as a dictionary by field (`{"value": 7}` for a plain type, `f0`, `f1`... for a tuple). It returns
    the new value, or None to remove it. It runs only when a snapshot with exactly these fields is restored. Lists and
    maps have migrations too, for each element and each value of an entry (map keys are unchanged):
    `ps.list_state(migrate=...)`, `ps.map_state(migrate=...)`.
    """
    return MigrateValues(function, was)
