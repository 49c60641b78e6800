"""Control of Python's cyclic garbage collector while a batch of rows is Python objects.

Rows and values are freed by reference counting. The collector, which starts after a number of new objects, would scan
all of them repeatedly without effect: more than half of a row function's time.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector; a function's cyclic garbage is collected after the batch."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
