"""The engine's side of the states that a process function declares: what they hold now, and how they were declared.

A state that a user sees has only the methods that users call. What it works on lies in objects that the engine makes
and shares with it: `Cells`, and what is noted of changes. Used by the modules of states and by those that bind them.
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
    """The place of the current key among the keys of the batch."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        """No key yet."""
        self.at = -1


def unbound() -> NoReturn:
    """Refuse: a declaration holds no state.

    Raises:
        UsageError: always.
    """
    msg = "state belongs to a key: it can only be used in process and on_timer, while the job runs"
    raise UsageError(msg, hint="prepare what is the same for all keys in open(self, ctx)")


class Cells:
    """Values of one state for the keys of a batch, by the place of the key; loaded when the first key asks."""

    __slots__ = ("_load", "current", "items")

    def __init__(self, current: Current) -> None:
        """Without keys: every use is an error until `begin`."""
        self.current = current
        #: Empty until loaded. Always the same list, so that a state reaches it in one step.
        self.items: list[Any] = []
        self._load: Callable[[], list[Any]] = unbound

    def begin(self, load: Callable[[], list[Any]]) -> None:
        """The next calls are for other keys; `load` returns what these have."""
        self._load = load
        self.items.clear()

    def forbid(self) -> None:
        """Let every use be an error until the next batch: there is no key now."""
        self.begin(unbound)

    def fill(self) -> None:
        """Load what the keys have."""
        self.items[:] = self._load()

    def take(self) -> list[Any]:
        """Return what the keys have, and forget it; nothing when no key has asked."""
        found = self.items.copy()
        self.items.clear()
        return found


@dataclass(frozen=True, slots=True)
class Declaration:
    """Options that a user has declared for a state, besides its type."""

    ttl: TimeToLive = None
    #: Field: what it was called before.
    renamed: dict[str, str] = field(default_factory=dict)
    migrate: MigrateValues | None = None
    #: The function of a reducing state, the aggregator of an aggregating one.
    fold: Any = None


#: Of states without options, and of those that the engine makes.
PLAIN = Declaration()


def declaration_of(state: Any) -> Declaration:
    """Return how a state was declared."""
    declared: Declaration = state._declaration  # noqa: SLF001 - hidden from users only
    return declared
