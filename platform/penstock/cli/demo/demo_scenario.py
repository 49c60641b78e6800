"""The scenario of `penstock demo`: the sizes of its job, and the protocol for its input and output.

Implemented by `demo_files` and `demo_kafka`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.cli.demo.oracle import OutputRow, Windows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.api.environment import Environment

WINDOW_SECONDS = 10
DISORDER_SECONDS = 5
PARALLELISM = 2
KILLS = 2


class Scenario(Protocol):
    """Where the demo's input comes from and its output goes."""

    #: Number of orders.
    events: int
    environment: dict[str, str]

    def prepare(self) -> None:
        """Make servers, topics, folders ready."""

    def build(self) -> Environment:
        """Return the environment with the job in it."""

    def begin(self) -> None:
        """The job runs: begin to produce, where that is needed."""

    def killed(self, kills: int) -> None:
        """So many workers have been killed: a producer goes on with the next part of the input."""

    def expected(self) -> Windows:
        """Compute the windows from the input, sharing no code with the engine."""

    def output(self) -> Iterable[OutputRow]:
        """Read the output as any reader would."""

    def close(self) -> None:
        """End everything that was started."""
