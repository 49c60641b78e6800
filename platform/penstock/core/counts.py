"""The text of a number with its noun."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return `1 row`, `2,000 rows`; the plural of `noun` ends in `s`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
