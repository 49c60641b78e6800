"""The strings of Nexmark's events: substrings of a pool of random letters, and picks from tables.

As in Nexmark's generator, `extra` fields are substrings of one random text of a megabyte, and channels with their URLs
are drawn from a table. Every string is copied into the batch's own buffer, or stays in place and gets a view. Called by
`events`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pyarrow as pa

from penstock_lab.nexmark import _kernels as kernels

Text = Literal["copied", "views"]

_POOL_BYTES = 1 << 20
#: Spare room at the end of a pool: more than its longest substring.
_ROOM = 256
_CHANNELS = 10_000
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_MASK = 0x7FFFFFFFFFFFFFFF
_CITIES = ("Tucson", "Mesa", "Oakland", "Fresno", "Boise", "Nampa", "Salem", "Eugene", "Tacoma", "Laramie")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_FIRST_NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Jim", "John", "Leslie", "Tony")
_LAST_NAMES = ("Allen", "Codd", "Gray", "Hoare", "Hopper", "Lamport", "Liskov", "Lovelace", "Turing")

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]


@cache
def salt(seed: int, field: str) -> int:
    """Return the value that makes the draws of a field independent of those of others."""
    return (seed * 0x9E3779B97F4A7C15 + crc32(field.encode()) * 0xD1B54A32D192ED03) & _MASK


def _pieces(longest: int) -> int:
    """Return the number of blocks in which a string of this length is copied."""
    return -(-longest // kernels.WIDE)


def rows_of(turns: Int64s) -> int:
    """Return the number of rows in a batch of these turns."""
    return int(turns[-1, 0])


def _cut(text: str, start: int, size: int) -> str:
    return text[start : start + size]


def _seen(views: Int64s, *pool: pa.Buffer) -> pa.Array:
    """Return an array of views of a pool."""
    return pa.Array.from_buffers(pa.string_view(), len(views), [None, pa.py_buffer(views), *pool])


class Table:
    """A list of strings to draw from."""

    def __init__(self, values: Sequence[str]) -> None:
        array = pa.array(values, pa.string())
        self.count = len(values)
        self._offsets = np.frombuffer(array.buffers()[1], np.int32)[: len(values) + 1]
        self._pieces = _pieces(int(np.diff(self._offsets).max(initial=0)))
        self._data = pa.allocate_buffer(int(self._offsets[-1]) + self._pieces * kernels.WIDE)
        np.frombuffer(self._data, np.uint8)[: self._offsets[-1]] = np.frombuffer(array.buffers()[2], np.uint8)
        _, views, *self._pool = array.cast(pa.string_view()).buffers()
        self._views = np.frombuffer(views, np.int64).reshape(-1, 2)

    def gather(self, picks: Int64s, text: Text) -> pa.Array:
        """Return the strings at these indices."""
        if text == "views":
            views = np.empty((len(picks), 2), np.int64)
            kernels.listed_views(picks, self._views, views)
            return _seen(views, *self._pool)
        places, offsets = np.empty(len(picks), np.int32), np.empty(len(picks) + 1, np.int32)
        kernels.listed_places(picks, self._offsets, places, offsets)
        return _copied(places, offsets, self._data, self._pieces)


def _copied(places: Int32s, offsets: Int32s, source: pa.Buffer, pieces: int) -> pa.Array:
    """Return an array of the strings at these positions of `source`, with lengths from the offsets."""
    size = int(offsets[-1])
    # NumPy's memory: a worker keeps freed memory, and the next batch finds it in the processor's cache
    data = pa.py_buffer(np.empty(size + pieces * kernels.WIDE, np.uint8))
    kernels.copy_strings(places, offsets, source.address, np.array([data.address, pieces], np.int64))
    return pa.Array.from_buffers(pa.string(), len(places), [None, pa.py_buffer(offsets), data.slice(0, size)])


class Strings:
    """Makes string columns for the rows of a batch, given by its turns (see `_kernels.turns`)."""

    def __init__(self, seed: int, text: Text) -> None:
        """Prepare; pools and tables are made when first needed."""
        self._seed = seed
        self._text = text
        self._tables: dict[str, Table] = {}
        #: The turns of a batch and the channel indices of its rows.
        self._picked: tuple[Int64s | None, Int64s] = (None, np.empty(0, np.int64))

    def filler(self, turns: Int64s, average: int) -> pa.Array:
        """Return letters, up to a fifth fewer or more than the average."""
        around = round(average * 0.2)
        return self._stretch(turns, "extra", self._letters, (average - around, 2 * around))

    def words(self, turns: Int64s, field: str, most: int) -> pa.Array:
        """Return letters and spaces: 3 up to `most` of them."""
        return self._stretch(turns, field, self._words, (3, most - 3))

    def channel(self, turns: Int64s) -> pa.Array:
        """Return the channel of every bid: half use one of four."""
        return self._of_channel("channel", 0, turns)

    def url(self, turns: Int64s) -> pa.Array:
        """Return the URL that belongs to every bid's channel."""
        return self._of_channel("url", 1, turns)

    def _of_channel(self, field: str, place: int, turns: Int64s) -> pa.Array:
        table = self._table(field, lambda: [channel[place] for channel in self._channels])
        return table.gather(self._channel_picks(turns), self._text)

    def listed(self, turns: Int64s, field: str) -> pa.Array:
        """Return values of a person's field, drawn from its list."""
        table = self._table(field, lambda: self._person_values(field))
        picks = np.empty(rows_of(turns), np.int64)
        kernels.picks(turns, salt(self._seed, field), table.count, picks)
        return table.gather(picks, self._text)

    def _stretch(self, turns: Int64s, field: str, pool: pa.Buffer, sizes: tuple[int, int]) -> pa.Array:
        rows, drawn = rows_of(turns), np.array([*sizes, _POOL_BYTES], np.int64)
        if self._text == "views":
            views = np.empty((rows, 2), np.int64)
            kernels.stretch_views(turns, salt(self._seed, field), drawn, pool.address, views)
            return _seen(views, pool)
        places, offsets = np.empty(rows, np.int32), np.empty(rows + 1, np.int32)
        kernels.stretch_places(turns, salt(self._seed, field), drawn, places, offsets)
        return _copied(places, offsets, pool, _pieces(sum(sizes) - 1))

    def _channel_picks(self, turns: Int64s) -> Int64s:
        """Return the index of every bid's channel, computed once for channel and URL of a batch."""
        if self._picked[0] is not turns:
            picks = np.empty(rows_of(turns), np.int64)
            every = len(_HOT_CHANNELS) + _CHANNELS
            kernels.channels(turns, salt(self._seed, "channel"), len(_HOT_CHANNELS), every, picks)
            self._picked = (turns, picks)
        return self._picked[1]

    # --- pools and tables -------------------------------------------------------------------------------------------

    def _table(self, name: str, values: Callable[[], Sequence[str]]) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(values())
        return self._tables[name]

    def _pool(self, name: str, space: int) -> pa.Buffer:
        pool = pa.allocate_buffer(_POOL_BYTES + _ROOM)
        kernels.letters(salt(self._seed, name), space, pool.address, _POOL_BYTES)
        return pool

    @cached_property
    def _letters(self) -> pa.Buffer:
        return self._pool("letters", 0)

    @cached_property
    def _words(self) -> pa.Buffer:
        return self._pool("words", 13)

    @cached_property
    def _channels(self) -> list[tuple[str, str]]:
        """Return the channels and their URLs; nine of ten URLs contain the channel's number with its bits reversed."""
        text = self._letters.slice(0, _POOL_BYTES).to_pybytes().decode()
        found = []
        for i in range(len(_HOT_CHANNELS) + _CHANNELS):
            parts = "/".join(_cut(text, 15 * i + 5 * k, 3 + (i + k) % 3) for k in range(3))
            url = f"https://www.nexmark.com/{parts}/item.htm?query=1"
            number = i - len(_HOT_CHANNELS)
            if number < 0:
                found.append((_HOT_CHANNELS[i], url))
                continue
            if number % 10:
                url += f"&channel_id={int(f'{number:032b}'[::-1], 2) & 0x7FFFFFFF}"
            found.append((f"channel-{number}", url))
        return found

    def _person_values(self, field: str) -> Sequence[str]:
        if field == "name":
            return [f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES]
        if field in ("city", "state"):
            return _CITIES if field == "city" else _STATES
        if field == "creditCard":
            draws = np.empty(40_000, np.int64)
            kernels.picks(np.array([[0, 0], [len(draws), 0]]), salt(self._seed, "digits"), 10_000, draws)
            return [" ".join(f"{part:04d}" for part in row) for row in draws.reshape(-1, 4).tolist()]
        text = self._letters.slice(0, _POOL_BYTES).to_pybytes().decode()
        return [f"{_cut(text, 12 * i, 3 + i % 4)}@{_cut(text, 12 * i + 7, 3 + i % 2)}.com" for i in range(10_000)]
