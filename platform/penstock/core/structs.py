"""Prepares structs for threads that decode them.

msgspec collects what it needs to decode a type when the type is first used, without a lock. Threads that use a type for
the first time at the same moment crash the process. So a module calls `prepare` after its types: the import lock lets
only one thread do it.
"""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*types: type[Any]) -> None:
    """Have msgspec collect what it needs to decode these types and the types of their fields."""
    for kind in types:
        msgspec.msgpack.Decoder(kind)
