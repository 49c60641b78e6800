"""The console for tables: a terminal, a pipe or a file."""

from __future__ import annotations

from rich.console import Console

_PIPE_WIDTH = 250


def terminal() -> Console:
    """Return a console; in a pipe or file, rows are not wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
