"""Conversion of rendered templates, which are always text, to the type of the argument.

`None`, `null` and the empty text are "not given". Each function raises UsageError with the argument's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import UsageError

_ABSENT = ("", "none", "null")
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def text(value: object) -> str:
    """Return a text; empty when it is not given."""
    found = "" if value is None else str(value).strip()
    return "" if found.lower() in _ABSENT else found


def count(name: str, value: object) -> int | None:
    """Return a whole number from 1, or None."""
    found = text(value)
    if found and not (found.isdigit() and int(found)):
        raise UsageError(f"{name}={value!r}", hint="give a whole number of at least 1, or nothing")
    return int(found) if found else None


def amount(name: str, value: object) -> float:
    """Return a number from 0; 0 when it is not given."""
    try:
        found = float(text(value) or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise UsageError(f"{name}={value!r}", hint="give a number of at least 0")
    return found


def flag(name: str, value: object) -> bool:
    """Return true or false; false when it is not given."""
    found = text(value).lower()
    if found and found not in _FLAGS:
        raise UsageError(f"{name}={value!r}", hint="give true or false")
    return _FLAGS.get(found, False)


def mapping(name: str, value: object) -> dict[str, Any]:
    """Return a mapping, also from JSON (`{{ params.x | tojson }}`); empty if it is not given."""
    if isinstance(value, Mapping):
        return dict(value)
    try:
        found = json.loads(text(value) or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{name}={value!r}", hint='give a mapping, or JSON such as {"totals": 3}')
    return found


def texts(name: str, value: object) -> list[str]:
    """Return a list of texts, also from JSON; empty if it is not given."""
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    try:
        found = json.loads(text(value) or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise UsageError(f"{name}={value!r}", hint='give a list, or JSON such as ["totals"]')
    return [str(item) for item in found]
