"""The location of a call in the user's file, for error messages such as `the sink totals (job.py:14) has no uid`."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[2])


def call_site() -> str:
    """Return `file:line` of the innermost caller outside penstock, or an empty string if there is none."""
    frame = sys._getframe(1)  # noqa: SLF001 - a traceback object would cost much more, at every call of the API
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
