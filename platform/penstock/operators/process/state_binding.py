"""Parameters and results of binding a declared state: the values that `process_states` passes to the binders."""

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
    """One state as described in the operator's config."""

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
        """The handle that is passed to the function."""

    def begin(self, slots: I32) -> None:
        """Start a batch of these keys."""

    def begin_broadcast(self) -> None:
        """Start a batch of the broadcast stream, whose rows have no key."""

    def write_back(self) -> None:
        """Save the changes."""


@dataclass(frozen=True, slots=True)
class Home:
    """The stores and names that an operator's states share."""

    state: RowState
    current: Current
    clock: TtlClock
    where: str
