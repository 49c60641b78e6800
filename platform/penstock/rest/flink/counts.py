"""Validation of whole numbers in requests, for all routes that take a number as text."""

from __future__ import annotations

#: More digits than any count, size or time has.
_MOST_DIGITS = 15


def is_count(text: str) -> bool:
    """Return whether `text` is a whole number of usual size; unlike `"²".isdigit()`, `int` accepts it."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
