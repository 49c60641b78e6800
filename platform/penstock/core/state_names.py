"""Names for users of the engine's own states; the files of snapshots and JSON output have the stored names.

Used by the commands, by REST and by `ps.snapshots`, which take either name.
"""

from __future__ import annotations

from collections.abc import Container

_SHOWN = {
    "__timers_event": "timers (event time)",
    "__timers_processing": "timers (processing time)",
    "__timers_due": "timers (ends of sessions)",
    "__input_watermark": "watermark (input)",
    "panes": "windows",
}
_STORED = {shown: stored for stored, shown in _SHOWN.items()}


def shown_name(stored: str) -> str:
    """Return the name of a state for users; other states have the name that their function gave."""
    return _SHOWN.get(stored, stored)


def stored_name(name: str, stored: Container[str]) -> str:
    """Return the name among the `stored` ones that a user's name means; an exact match wins; else `name` itself."""
    other = _STORED.get(name, name)
    return other if name not in stored and other in stored else name
