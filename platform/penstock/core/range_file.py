"""A file whose parts are fetched as they are read, for libraries that need a seekable file.

Called by `state.log.segment_file` (parts that are in memory already) and `backfill.table_files` (parts of stored
objects).
"""

from __future__ import annotations

import io
from collections.abc import Callable


class RangeFile(io.RawIOBase):
    """Reads bytes by `fetch(offset, length)`; its only state is the position."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        """Read a file of `size` bytes; `fetch` is never called beyond the end or for zero bytes."""
        self._size, self._fetch = size, fetch
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move and return the position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, fewer at the end; exceptions of `fetch` are passed on."""
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        data = self._fetch(self._at, length) if length else b""
        self._at += len(data)
        return data
