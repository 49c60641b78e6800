"""w1 without an engine, an upper bound: two workers, each a source and a window thread, Arrow between them by socket.

Generator, split by key group, exchange, aggregate and checksum are compiled loops; there is no API, no checkpoint, no
recovery. `penstock bench w1 --peers DIR` runs it and compares its answer. A worker reads no further from
the source that is ahead than its ring of open windows reaches: without that bound two sources drift apart on a busy
machine and rows of a later window are added to an earlier one.

usage: python bare_loop.py EVENTS
"""

from __future__ import annotations

import json
import multiprocessing as mp
import queue
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa

WORKERS, BATCH_ROWS, KEY_GROUPS = 2, 32_768, 1024
START_MS, WINDOW_MS, DELAY_MS = 1_700_000_000_000, 10_000, 5_000
MODULUS, KEYS = 1_000_000_007, 100_000
#: Windows open at a time, and how many a source may be ahead of the oldest of them.
RING, AHEAD = 8, 6
#: Batches of one source that wait in a worker.
WAITING = 8
SLOTS, TABLE = 1 << 17, 1 << 18
_M32 = (1 << 32) - 1
_END = 1 << 62
_HEADER = struct.Struct("<Iq")
_SCHEMA = pa.schema([(name, pa.int64()) for name in ("user", "amount", "ts")])
_compiled = nb.njit(nogil=True, cache=True)


@_compiled
def make(first: Any, step: Any, user: Any, amount: Any, ts: Any) -> None:
    """Make events `first, first + step ...`."""
    for j in range(len(user)):
        i = first + j * step
        a = (i * 2654435761) & _M32
        b = (((a + (a >> 15)) & _M32) * 1540483477) & _M32
        c = (((a + (a >> 13)) & _M32) * 1103515245) & _M32
        user[j] = (b >> 4) % KEYS
        amount[j] = 1 + (c >> 20) % 1000
        ts[j] = START_MS + i // 100 - (c >> 4) % 5000


@_compiled
def order_by_worker(keys: Any, target: Any, counts: Any, order: Any) -> None:
    """Write which rows go to the first worker, then those of the second, and how many there are of each."""
    counts[:] = 0
    for j in range(len(keys)):
        h = np.uint64(keys[j]) * np.uint64(0x9E3779B97F4A7C15)
        group = np.int64(((h ^ (h >> np.uint64(32))) >> np.uint64(40)) & np.uint64(KEY_GROUPS - 1))
        target[j] = group * WORKERS // KEY_GROUPS
        counts[target[j]] += 1
    place = np.zeros(WORKERS, np.int64)
    for w in range(1, WORKERS):
        place[w] = place[w - 1] + counts[w - 1]
    for j in range(len(keys)):
        order[place[target[j]]] = j
        place[target[j]] += 1


@_compiled
def find_slots(keys: Any, table: Any, known: Any, count: Any, slots: Any) -> Any:
    """Write the slot of every key, a new one for a new key; `table` = (keys, slots) by hash; returns how many slots."""
    table_keys, table_slots = table
    mask = len(table_keys) - 1
    for j in range(len(keys)):
        key = keys[j]
        at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)) & mask
        while table_slots[at] >= 0 and table_keys[at] != key:
            at = (at + 1) & mask
        if table_slots[at] < 0:
            table_keys[at], table_slots[at], known[count] = key, count, key
            count += 1
        slots[j] = table_slots[at]
    return count


@_compiled
def add(slots: Any, ts: Any, amount: Any, counts: Any, sums: Any) -> None:
    """Add rows to their windows."""
    for j in range(len(slots)):
        row = ((ts[j] - START_MS + WINDOW_MS) // WINDOW_MS) % RING
        counts[row, slots[j]] += 1
        sums[row, slots[j]] += amount[j]


@_compiled
def close(window: Any, known: Any, counts: Any, sums: Any, total: Any) -> None:
    """Add a window's results to the checksum and clear it; `known`: the keys seen so far."""
    row = window % RING
    for slot in range(len(known)):
        count = counts[row, slot]
        if count:
            total[0] += 1
            total[1] += count
            total[2] += sums[row, slot]
            total[3] += ((known[slot] * 31 + window * 17 + count) * (sums[row, slot] + 7)) % MODULUS
            counts[row, slot] = sums[row, slot] = 0


class Inbox:
    """What waits in a worker, bounded for each source."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._room = [threading.Semaphore(WAITING) for _ in range(WORKERS)]

    def put(self, source: int, element: Any) -> None:
        """Add (rows, watermark) of a source, None for its end; waits for room."""
        self._room[source].acquire()
        self._queue.put((source, element))

    def get(self) -> tuple[int, Any]:
        """Take the oldest element; it keeps its room until `done`."""
        return self._queue.get()

    def done(self, source: int) -> None:
        """Give the room of one element back."""
        self._room[source].release()


class Windows:
    """The windows of one worker."""

    def __init__(self, events: int) -> None:
        self._last = ((events - 1) // 100 - DELAY_MS - 50) // WINDOW_MS
        self._table = np.zeros(TABLE, np.int64), np.full(TABLE, -1, np.int64)
        self._known = np.zeros(SLOTS, np.int64)
        self._slots = np.empty(BATCH_ROWS, np.int64)
        self._cells = np.zeros((RING, SLOTS), np.int64), np.zeros((RING, SLOTS), np.int64)
        self._count = self._closed = 0
        self._watermarks = [0] * WORKERS
        self.total = np.zeros(4, np.int64)

    def run(self, inbox: Inbox) -> None:
        """Take everything of all sources, of none further than the ring reaches."""
        aside: list[deque[Any]] = [deque() for _ in range(WORKERS)]
        while min(self._watermarks) < _END:
            ready = [s for s in range(WORKERS) if aside[s] and not self._ahead(s)]
            if ready:
                source, element = ready[0], aside[ready[0]].popleft()
            else:
                source, element = inbox.get()
                if aside[source] or self._ahead(source):
                    aside[source].append(element)
                    continue
            self._take(source, element)
            inbox.done(source)

    def warm(self) -> None:
        """Have every loop compiled for arrays as they come, by rows of our own and by received ones."""
        for rows in (pa.record_batch([np.zeros(0, np.int64)] * 3, schema=_SCHEMA), _sliced()):
            self._add(rows)
        close(0, self._known[:0], *self._cells, self.total)

    def _ahead(self, source: int) -> bool:
        return (self._watermarks[source] - START_MS) // WINDOW_MS - self._closed >= AHEAD

    def _take(self, source: int, element: Any) -> None:
        if element is None:
            self._watermarks[source] = _END
        else:
            self._add(element[0])
            self._watermarks[source] = element[1]
        lowest = min(self._watermarks)
        while self._closed <= self._last and START_MS + self._closed * WINDOW_MS - 1 <= lowest:
            close(self._closed, self._known[: self._count], *self._cells, self.total)
            self._closed += 1

    def _add(self, rows: pa.RecordBatch) -> None:
        user, amount, ts = (column.to_numpy() for column in rows.columns)
        slots = self._slots[: len(user)]
        self._count = find_slots(user, self._table, self._known, self._count, slots)
        add(slots, ts, amount, *self._cells)


def _sliced() -> pa.RecordBatch:
    return pa.record_batch([np.zeros(2, np.int64)] * 3, schema=_SCHEMA).slice(1, 0)


def read(sock: socket.socket, inbox: Inbox, source: int) -> None:
    """Pass on what one other worker sends."""
    with sock.makefile("rb", buffering=1 << 20) as stream:
        while header := stream.read(_HEADER.size):
            size, watermark = _HEADER.unpack(header)
            data = bytearray(size)
            stream.readinto(memoryview(data))
            inbox.put(source, (pa.ipc.read_record_batch(pa.py_buffer(data), _SCHEMA), watermark))
    inbox.put(source, None)


def write(worker: int, events: int, inbox: Inbox, others: dict[int, socket.socket]) -> None:
    """Make this worker's events and send each to its owner."""
    target, order = np.empty(BATCH_ROWS, np.int32), np.empty(BATCH_ROWS, np.int64)
    counts = np.zeros(WORKERS, np.int64)
    first, left = worker, events // WORKERS
    while left:
        rows = min(BATCH_ROWS, left)
        user, amount, ts = (np.empty(rows, np.int64) for _ in range(3))
        make(first, WORKERS, user, amount, ts)
        first += rows * WORKERS
        left -= rows
        watermark = int(ts.max()) - DELAY_MS
        order_by_worker(user, target, counts, order)
        batch = pa.record_batch([user, amount, ts], schema=_SCHEMA).take(pa.array(order[:rows]))
        start = 0
        for owner in range(WORKERS):
            part = batch.slice(start, counts[owner])
            start += int(counts[owner])
            if owner == worker:
                inbox.put(worker, (part, watermark))
                continue
            data = part.serialize()
            others[owner].sendall(_HEADER.pack(data.size, watermark))
            others[owner].sendall(memoryview(data))
    inbox.put(worker, None)
    for sock in others.values():
        sock.shutdown(socket.SHUT_WR)


def work(worker: int, events: int, folder: str, ready: Any, result: Any) -> None:
    """Be one worker."""
    inbox, windows, others = Inbox(), Windows(events), {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/{worker}")
        listener.listen()
        ready.wait()
        for other in range(WORKERS):
            if other != worker:
                others[other] = socket.socket(socket.AF_UNIX)
                others[other].connect(f"{folder}/{other}")
                others[other].send(bytes([worker]))
        accepted = [listener.accept()[0] for _ in others]
    windows.warm()
    make(0, 1, *(np.empty(1, np.int64) for _ in range(3)))
    order_by_worker(np.zeros(1, np.int64), np.empty(1, np.int32), np.zeros(WORKERS, np.int64), np.empty(1, np.int64))
    for sock in accepted:
        threading.Thread(target=read, args=(sock, inbox, sock.recv(1)[0]), daemon=True).start()
    ready.wait()
    wall, cpu = time.monotonic(), time.process_time()
    threading.Thread(target=write, args=(worker, events, inbox, others)).start()
    windows.run(inbox)
    result.put((time.monotonic() - wall, time.process_time() - cpu, windows.total.tolist()))


def main() -> None:
    """Run the workers; print rates and checksum."""
    events = int(sys.argv[1])
    if events % WORKERS:
        sys.exit(f"the number of events must be a multiple of {WORKERS}")
    context = mp.get_context("fork")
    ready, result = context.Barrier(WORKERS), context.Queue()
    with tempfile.TemporaryDirectory(prefix="bare-loop-") as folder:
        workers = [context.Process(target=work, args=(w, events, folder, ready, result)) for w in range(WORKERS)]
        for process in workers:
            process.start()
        found = [result.get(timeout=1000) for _ in workers]
        for process in workers:
            process.join()
    wall, cpu = max(f[0] for f in found), sum(f[1] for f in found)
    checksum = ":".join(str(sum(f[2][i] for f in found)) for i in range(4))
    record = {"events_per_second": events / wall, "events_per_cpu_second": events / cpu, "checksum": checksum}
    print(f"BENCH {json.dumps(record)}")


if __name__ == "__main__":
    main()
