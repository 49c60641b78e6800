"""Python's cyclic garbage collector while a batch of rows is Python objects.

Rows and values are freed by their reference counts. The collector, which is started by the number of new objects,
would look through all of them again and again and find nothing: more than half of a row function's time.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no cyclic garbage meanwhile; what a function leaves of it is collected behind the batch."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
