"""Hints for misspelt names: the nearest one and all that there are. Called wherever a user's name is looked up."""

from __future__ import annotations

from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the nearest one when there is any, and all that are known."""
    import difflib  # where a name is right nobody pays for it

    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    listed = f"there are: {', '.join(names)}" if names else "there are none"
    return f"did you mean {close[0]!r}? {listed}" if close else listed
