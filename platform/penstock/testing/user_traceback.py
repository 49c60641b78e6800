"""Tracebacks of a test that uses the harness, without the frames of penstock; called by the pytest plugin."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from penstock.task.chain.failure import is_library_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.errors import PenstockError

_HARNESS = "penstock.testing.harness"


def end_at_test(error: PenstockError) -> None:
    """End the traceback of an error that the harness raised at the last line of the user's code.

    Its causes go too: its text and notes have all that a user needs.
    """
    entries = list(_entries(error.__traceback__))
    if not any(entry.tb_frame.f_globals.get("__name__") == _HARNESS for entry in entries):
        return
    while entries and is_library_code(entries[-1].tb_frame.f_code.co_filename):
        entries.pop()
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    if kept is not None:
        error.__traceback__, error.__cause__, error.__suppress_context__ = kept, None, True


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
