"""A stream as the modules see it that work out what stands behind it: protocols of `streams.DataStream`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.api.building.flow import Flow


class InputStream(Protocol):
    """Rows that an operator is to be given."""

    @property
    def flow(self) -> Flow:
        """Where the rows come from and what they are."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""


class KeyedInputStream(InputStream, Protocol):
    """Rows of which one key's meet in one subtask of the operator."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
