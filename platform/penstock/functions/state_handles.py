"""The engine's side of the states that a process function declares: their present values, and their declarations.

A state handle has only methods for users. Its data is in objects that the engine makes and shares with it: `Cells`, and
the recorded changes. Used by the modules of states and by those that bind them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.functions.migration import MigrateValues
    from penstock.functions.state_ttl import TimeToLive


class Current:
    """The index of the current key among the keys of the batch."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        """Start without a key."""
        self.at = -1


def unbound() -> NoReturn:
    """Raise the error for a declaration, which holds no state.

    Raises:
        UsageError: always.
    """
    msg = "state belongs to a key: it can only be used in process and on_timer, while the job runs"
    raise UsageError(msg, hint="prepare what is the same for all keys in open(self, ctx)")


class Cells:
    """Values of one state for the keys of a batch, by index of the key; loaded at the first use."""

    __slots__ = ("_load", "current", "items")

    def __init__(self, current: Current) -> None:
        """Start without keys: every use is an error until `begin`."""
        self.current = current
        #: Empty until loaded. Always the same list, so that a state accesses it in one step.
        self.items: list[Any] = []
        self._load: Callable[[], list[Any]] = unbound

    def begin(self, load: Callable[[], list[Any]]) -> None:
        """Start a batch of other keys; `load` returns their values."""
        self._load = load
        self.items.clear()

    def forbid(self) -> None:
        """Make every use an error until the next batch: there is no key at present."""
        self.begin(unbound)

    def fill(self) -> None:
        """Load the values of the batch's keys."""
        self.items[:] = self._load()

    def take(self) -> list[Any]:
        """Return and drop the loaded values; empty if the state was not used."""
        found = self.items.copy()
        self.items.clear()
        return found


@dataclass(frozen=True, slots=True)
class Declaration:
    """Options of a declared state, besides its type."""

    ttl: TimeToLive = None
    #: Field name: its former name.
    renamed: dict[str, str] = field(default_factory=dict)
    migrate: MigrateValues | None = None
    #: The function of a reducing state, the aggregator of an aggregating one.
    fold: Any = None


#: The declaration of states without options, and of those that the engine makes.
PLAIN = Declaration()


def declaration_of(state: Any) -> Declaration:
    """Return the declaration of a state."""
    declared: Declaration = state._declaration  # noqa: SLF001 - hidden from users only
    return declared
