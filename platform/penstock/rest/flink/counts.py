"""Whole numbers in questions: what is one, for every route that takes a number as text."""

from __future__ import annotations

#: More than any count, size or time has.
_MOST_DIGITS = 15


def is_count(text: str) -> bool:
    """Whether `int(text)` is a whole number of usual size; `"²".isdigit()` holds, and `int` refuses it."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
