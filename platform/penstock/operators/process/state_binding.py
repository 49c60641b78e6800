"""What binding a declared state needs to know and gives: the values that `process_states` hands to the binders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.functions.state_handles import Current
    from penstock.kernels.compiler.compile import I32
    from penstock.state.log.ttl import Ttl, TtlClock
    from penstock.state.tables.row_state import RowState


@dataclass(frozen=True, slots=True)
class StateConfig:
    """One state as the operator's config has it."""

    kind: str
    values: pa.Schema
    #: The columns of a map's keys.
    keys: pa.Schema | None
    #: Begins every error.
    where: str
    ttl: Ttl | None


@dataclass(frozen=True, slots=True)
class StateTypes:
    """Row types (None: a plain value) of values, and of a map's keys."""

    values: type | None
    keys: type | None


class BoundState(Protocol):
    """A state's handle over its table."""

    @property
    def handle(self) -> Any:
        """What the function is given."""

    def begin(self, slots: I32) -> None:
        """The next calls are for these keys."""

    def begin_broadcast(self) -> None:
        """The next calls are for rows of a broadcast stream, which have no key."""

    def write_back(self) -> None:
        """Save what has changed."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the states of an operator live."""

    state: RowState
    current: Current
    clock: TtlClock
    where: str
