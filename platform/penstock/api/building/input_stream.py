"""Protocols of `streams.DataStream` for the modules that build the operators after a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.api.building.flow import Flow


class InputStream(Protocol):
    """Rows that an operator receives."""

    @property
    def flow(self) -> Flow:
        """The origin and the schema of the rows."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""


class KeyedInputStream(InputStream, Protocol):
    """Rows of which those of one key reach the same subtask of the operator."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
