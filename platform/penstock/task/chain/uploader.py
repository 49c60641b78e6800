"""Group commit of a worker's checkpoint files: all files queued at one moment are written into one object.

One uploader per (job, run) in a worker, shared by its subtasks. Small parts are not written to the store: they are
returned as inline references and travel in the ack. Written objects are read back and compared while the caller still
holds the bytes. Runs in an injected `Background`; `write` may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import checksum_of, place_of
from penstock.core import failpoints
from penstock.core.errors import StorageError
from penstock.core.snapshot import FileRef
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.task.chain.background import Background

#: An object is closed once it is this large; a larger part gets a separate one.
PACK_BYTES = 64 << 20
#: Objects written at the same time.
PARALLEL_PACKS = 2
_READ_BACK_BYTES = 8 << 20

#: References in the order of the parts, or the error.
Uploaded = Callable[[tuple[FileRef, ...] | None, BaseException | None], object]


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes to be made durable; output and rows in flight are stored apart from state: they are deleted sooner."""

    data: bytes
    folder: Literal["data", "pending", "channels"] = "data"
    #: Whether it may travel in the ack if it is small.
    inline: bool = True


@dataclass(frozen=True, slots=True)
class _Request:
    parts: tuple[Part, ...]
    done: Uploaded
    #: Bytes to write to the store.
    size: int


class Uploader:
    """Writes packs of parts of one folder, named `<folder>/<prefix>-<n>.pack`, `n` from `next_number`."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        background: Background,
        next_number: Callable[[], int],
        limits: StateLimits = PRODUCTION,
        watched: Callable[[str, Callable[[], Any]], Callable[[], Any]] = lambda _, work: work,
    ) -> None:
        """`prefix` is `<run>/<worker>`; numbers never repeat under one prefix; `watched`: of `task.chain.background`.

        A request is rejected while more than `limits.queued_bytes` wait: the checkpoint is declined, the state is kept.
        """
        self._limits, self._watched = limits, watched
        self._store = store
        self._prefix = prefix
        self._background = background
        self._next_number = next_number
        self._queue: deque[_Request] = deque()
        self._queued_bytes = 0
        self._running = 0
        self._lock = threading.Lock()
        self.objects_written = 0
        self.bytes_written = 0
        #: Called with the key and the bytes of each written object of state or rows in flight.
        self.keep: Callable[[str, bytes], None] = lambda _key, _data: None

    def write(self, parts: tuple[Part, ...], done: Uploaded) -> None:
        """Make all parts durable, then call `done` from a background thread (at once when all are small)."""
        size = sum(len(part.data) for part in parts if not self._is_small(part))
        if size == 0:
            done(tuple(_inline(part) for part in parts), None)
            return
        with self._lock:
            refused = bool(self._queue) and self._queued_bytes + size > self._limits.queued_bytes
            if not refused:
                self._queue.append(_Request(parts, done, size))
                self._queued_bytes += size
        if refused:
            msg = f"{self._queued_bytes >> 20} MB of checkpoint files wait to be written to {self._store.uri}"
            done(None, StorageError(msg, hint="the store is too slow for this checkpoint interval"))
            return
        self._pump()

    def _is_small(self, part: Part) -> bool:
        """Return whether a part is too small for the store."""
        limits = self._limits
        most = limits.inline_staged_bytes if part.folder == "pending" else limits.inline_state_bytes
        return part.inline and len(part.data) < most

    def _pump(self) -> None:
        while True:
            with self._lock:
                if not self._queue or self._running >= PARALLEL_PACKS:
                    return
                self._running += 1
                group = self._take_group()
            what = f"writing {sum(r.size for r in group):,} bytes of a checkpoint to {place_of(self._store.uri)}"
            self._background.submit(
                self._watched(what, lambda group=group: self._write_group(group)),  # type: ignore[misc]
                lambda refs, error, group=group: self._finish(group, refs, error),  # type: ignore[misc]
            )

    def _take_group(self) -> tuple[_Request, ...]:
        group = [self._queue.popleft()]
        size = group[0].size
        while self._queue and size + self._queue[0].size <= PACK_BYTES:
            group.append(self._queue.popleft())
            size += group[-1].size
        self._queued_bytes -= size
        return tuple(group)

    def _finish(self, group: tuple[_Request, ...], refs: list[FileRef] | None, error: BaseException | None) -> None:
        with self._lock:
            self._running -= 1
        remaining = iter(refs or ())
        for request in group:
            if error is not None:
                request.done(None, error)
            else:
                request.done(tuple(next(remaining) for _ in request.parts), None)
        self._pump()

    def _write_group(self, group: tuple[_Request, ...]) -> list[FileRef]:
        """Write the group's objects and return a reference per part, in order. Runs in the background."""
        parts = [part for request in group for part in request.parts]
        refs: list[FileRef | None] = [_inline(part) if self._is_small(part) else None for part in parts]
        for folder in ("data", "pending", "channels"):
            mine = [i for i, part in enumerate(parts) if part.folder == folder and refs[i] is None]
            for indexes in _packs(mine, parts):
                for index, ref in zip(indexes, self._write_pack(folder, [parts[i].data for i in indexes]), strict=True):
                    refs[index] = ref
        return [ref for ref in refs if ref is not None]

    def _write_pack(self, folder: str, blocks: list[bytes]) -> list[FileRef]:
        key = f"{folder}/{self._prefix}-{self._next_number()}.pack"
        failpoints.hit("segment.upload", key=key)
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        self._store.put(key, data)
        self._verify(key, data)
        self.objects_written += 1
        self.bytes_written += len(data)
        refs, offset = [], 0
        for block in blocks:
            refs.append(FileRef(path=key, offset=offset, length=len(block), checksum=checksum_of(block)))
            offset += len(block)
        if folder != "pending":
            self.keep(key, data)
        return refs

    def _verify(self, key: str, data: bytes) -> None:
        """Read the object back and compare it with the bytes that the manifest will name."""
        for start in range(0, len(data), _READ_BACK_BYTES):
            expected = data[start : start + _READ_BACK_BYTES]  # a comparison of memoryviews would go byte by byte
            try:
                found = self._store.read(key, start, len(expected))
            except FileNotFoundError:
                found = b""
            if found != expected:
                msg = f"{self._store.uri}/{key} does not hold what was written to it"
                raise StorageError(msg, hint="check the store's disk")


def _inline(part: Part) -> FileRef:
    data = bytes(part.data)  # spilled parts are memory-mapped, which a manifest cannot contain
    return FileRef(inline=data, length=len(data), checksum=checksum_of(data))


def _packs(indexes: list[int], parts: list[Part]) -> Iterator[list[int]]:
    pack: list[int] = []
    size = 0
    for index in indexes:
        length = len(parts[index].data)
        if pack and size + length > PACK_BYTES:
            yield pack
            pack, size = [], 0
        pack.append(index)
        size += length
    if pack:
        yield pack
