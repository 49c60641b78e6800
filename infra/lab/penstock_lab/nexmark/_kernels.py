"""Compiled loops of the Nexmark generator: fields of events as functions of the event's number.

Every field is drawn from a hash of (event number, salt). So a replay from any event is exact, and columns that are not
requested cost nothing. Compiled or loaded from the disk cache at import; the source's `preload` names this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.connector.compiled import njit, types
from penstock_connectors.formats.memory import compiled, copy, put_byte, word

_I = types.int64
_OUT = types.int64[::1]
_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS_IN = types.Array(types.float64, 1, "C", readonly=True)
_OFFSETS = types.int32[::1]
_OFFSETS_IN = types.Array(types.int32, 1, "C", readonly=True)
_TURNS_IN = _VIEWS_IN = types.Array(types.int64, 2, "C", readonly=True)
_PAIRS = types.int64[:, ::1]

#: Nexmark's proportions: of 50 consecutive events 1 is a person, 3 are auctions, 46 are bids.
EPOCH, PERSONS, AUCTIONS, BIDS = 50, 1, 3, 46
FIRST_ID = 1000
#: A bid may be for one of this many future auctions, and an action by one of as many future people.
LEAD = 10
#: The hot auction, seller or bidder is the first of the last this many.
HOT_BATCH = 100
_ONE = np.uint64(1)
#: Strings are copied in blocks of this many bytes, as many as the longest string needs; buffers have that much spare
#: room at their end. This avoids a branch on the length, which could not be predicted.
WIDE = 32
#: Strings of up to this many bytes are stored in their Arrow view.
INLINE = 12


@njit(inline="always")
def _draw(number: Any, salt: Any) -> Any:
    """Return 64 random bits: the finaliser of splitmix64 over number and salt."""
    mixed = np.uint64(number) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@njit(inline="always")
def _epoch(number: Any) -> Any:
    """Return the epoch of an event; unsigned, because the compiler then divides by one multiplication."""
    return np.int64(np.uint64(number) // np.uint64(EPOCH))


@njit(inline="always")
def _hot(last: Any) -> Any:
    """Return the first of the last batch of auctions or people."""
    return np.int64(np.uint64(last) // np.uint64(HOT_BATCH) * np.uint64(HOT_BATCH))


@njit(inline="always")
def _low(bits: Any, bound: Any) -> Any:
    """Return an evenly drawn integer below `bound` from the low half of `bits`."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(bound)) >> np.uint64(32))


@njit(inline="always")
def _high(bits: Any, bound: Any) -> Any:
    """Return an evenly drawn integer below `bound` from the high half of `bits`."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


def _turns(start: int, place: Any, count: Any, out: Any) -> int:
    """Write the turns of `count` rows of a split from `start` on: [row, event number] of each begin, then the end.

    A turn is the events of the kind within one epoch, whose numbers are consecutive. Values of the epoch are computed
    once for all of them, and the loop over them can be vectorised. `place` = [split, splits, first event of the kind
    within an epoch, events of the kind in an epoch]. Returns how many turns there are.
    """
    split, splits, first, share = place[0], place[1], place[2], place[3]
    turn = start // share
    inside = start - turn * share
    row = found = np.int64(0)
    while row < count:
        out[found, 0], out[found, 1] = row, (turn * splits + split) * EPOCH + first + inside
        row, turn, found, inside = min(row + share - inside, count), turn + 1, found + 1, np.int64(0)
    out[found, 0] = count
    return int(found)


@njit(inline="always")
def _turn(turns: Any, turn: Any) -> Any:
    """Return a turn's first row, its end, and the difference between event numbers and rows.

    All are unsigned, and so are their sums: numba tests every signed position.
    """
    first = np.uint64(turns[turn, 0])
    return first, np.uint64(turns[turn + 1, 0]), np.uint64(turns[turn, 1]) - first


def _times(turns: Any, start_us: int, rate: int, out: Any) -> int:
    """Write event times in microseconds, whole milliseconds as in Nexmark's schema: `number * 1000 div rate`."""
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        passed = np.int64(above + first) * 1000
        whole = np.int64(np.uint64(passed) // np.uint64(rate))
        rest = passed - whole * rate
        if np.int64(end - first) * 1000 <= rate:  # at most one millisecond boundary
            for i in range(first, end):
                out[i] = start_us + (whole + np.int64(rest + np.int64(i - first) * 1000 >= rate)) * 1000
            continue
        for i in range(first, end):
            if rest >= rate:
                more = np.int64(np.uint64(rest) // np.uint64(rate))
                whole, rest = whole + more, rest - more * rate
            out[i] = start_us + whole * 1000
            rest += 1000
    return len(out)


@njit(inline="always")
def _price_of(bits: Any, curve: Any) -> Any:
    """Return a price: 100 * 10^(6 u), u even in [0, 1), from a piecewise linear curve."""
    pieces = np.uint64(len(curve) - 1)
    even = (bits >> np.uint64(12)) * pieces
    at = even >> np.uint64(52)
    part = np.float64(even & np.uint64((1 << 52) - 1)) / 4503599627370496.0
    low = curve[at]
    return np.int64(low + (curve[at + np.uint64(1)] - low) * part + 0.5)


def _auction_ids(turns: Any, salt: int, ratio: int, in_flight: int, out: Any) -> int:
    """Write the auctions of bids: with probability 1 - 1/`ratio` the hot one, else one in flight."""
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        last = _epoch(above + first) * AUCTIONS + AUCTIONS - 1
        least = max(last - in_flight, 0)
        hot, cold, choice = _hot(last) + FIRST_ID, least + FIRST_ID, last - least + 1 + LEAD
        for i in range(first, end):
            bits = _draw(above + i, salt)
            out[i] = hot if _low(bits, ratio) > 0 else cold + _high(bits, choice)
    return len(out)


def _person_ids(turns: Any, salt: int, hot_person: Any, active: int, out: Any) -> int:
    """Write bidders or sellers; `hot_person` = [ratio, position of the hot one within its batch of people]."""
    ratio, place = hot_person[0], hot_person[1]
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        epoch = _epoch(above + first)
        near = min(epoch + 1, active)
        hot, cold, choice = _hot(epoch) + place + FIRST_ID, epoch + 1 - near + FIRST_ID, near + LEAD
        for i in range(first, end):
            bits = _draw(above + i, salt)
            out[i] = hot if _low(bits, ratio) > 0 else cold + _high(bits, choice)
    return len(out)


def _own_ids(turns: Any, before: int, share: int, out: Any) -> int:
    """Write the ids of new persons or auctions, which are consecutive; `before`: events of other kinds in an epoch."""
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        epoch = _epoch(above + first)
        least = epoch * share + np.int64(above) - epoch * EPOCH - before + FIRST_ID
        for i in range(first, end):
            out[i] = least + np.int64(i)
    return len(out)


def _prices(turns: Any, salt: int, curve: Any, out: Any) -> int:
    """Write prices."""
    drawn = np.empty(EPOCH, np.uint64)  # a separate loop, to be vectorised
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        for i in range(end - first):
            drawn[i] = _draw(above + first + i, salt)
        for i in range(end - first):
            out[first + i] = _price_of(drawn[i], curve)
    return len(out)


def _picks(turns: Any, salt: int, bound: int, out: Any) -> int:
    """Write an evenly drawn integer below `bound` for every event."""
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        for i in range(first, end):
            out[i] = _low(_draw(above + i, salt), bound)
    return len(out)


def _channels(turns: Any, salt: int, hot: int, every: int, out: Any) -> int:
    """Write the index of every bid's channel in a table: half are one of the `hot` first, half one of the others."""
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        for i in range(first, end):
            bits = _draw(above + i, salt)
            out[i] = _high(bits, hot) if bits & _ONE else hot + _high(bits, every - hot)
    return len(out)


def _listed_places(picks: Any, offsets: Any, places: Any, out: Any) -> int:
    """Write the start of the picked strings of a table, and Arrow offsets of the copies; return their bytes."""
    total = np.int64(0)
    for i in range(len(picks)):
        first = np.int64(offsets[picks[i]])
        places[i] = first
        out[i] = total
        total += np.int64(offsets[picks[i] + 1]) - first
    out[len(picks)] = total
    return int(total)


def _stretch_places(turns: Any, salt: int, sizes: Any, places: Any, out: Any) -> int:
    """Write the start of each event's substring of a pool, and Arrow offsets of the copies; return their bytes.

    `sizes` = [least bytes, how many more at most plus one, bytes of the pool].
    """
    least, spread, room = sizes[0], sizes[1], sizes[2]
    total = np.int64(0)
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        for i in range(first, end):
            bits = _draw(above + i, salt)
            size = least + _low(bits, spread)
            places[i] = _high(bits, room - size)
            out[i] = total
            total += size
    out[len(places)] = total
    return int(total)


@njit(inline="always")
def _bytes(address: Any, count: Any) -> Any:
    """Return the `count` bytes at an address (at most 8) as an integer."""
    left = np.uint64(8 * (8 - count))
    return 0 if count <= 0 else np.int64((np.uint64(word(address)) << left) >> left)


def _stretch_views(turns: Any, salt: int, sizes: Any, pool: int, out: Any) -> int:
    """Write Arrow's view of each event's substring of the pool at address `pool`; `sizes` as in `stretch_places`.

    A view has the size and the first four bytes, then the position; or the other bytes, if they fit.
    """
    least, spread, room = sizes[0], sizes[1], sizes[2]
    drawn, placed = np.empty(EPOCH, np.int64), np.empty(EPOCH, np.int64)  # separate loops, to be vectorised
    for turn in range(len(turns) - 1):
        first, end, above = _turn(turns, turn)
        for i in range(end - first):
            bits = _draw(above + first + i, salt)
            drawn[i] = least + _low(bits, spread)
            placed[i] = _high(bits, room - drawn[i])
        for i in range(end - first):
            size, at = drawn[i], pool + placed[i]
            if size > INLINE:
                out[first + i, 0], out[first + i, 1] = size | word(at) << 32, placed[i] << 32
            else:
                out[first + i, 0] = size | _bytes(at, min(size, 4)) << 32
                out[first + i, 1] = _bytes(at + 4, size - 4)
    return len(out)


def _listed_views(picks: Any, table: Any, out: Any) -> int:
    """Write the views of the picked strings of a table."""
    for i in range(len(picks)):
        pick = np.uint64(picks[i])
        out[i, 0], out[i, 1] = table[pick, 0], table[pick, 1]
    return len(picks)


def _copy_strings(places: Any, offsets: Any, source: int, target: Any) -> int:
    """Copy the strings at these positions one after another; `target` = [address, blocks of the longest string].

    Both buffers have spare room at their end. The next string overwrites excess bytes of a block. The usual numbers of
    blocks are unrolled: the compiler would turn a loop over them into a call.
    """
    to, pieces = target[0], target[1]
    if pieces == 1:
        for i in range(len(places)):
            copy(to + np.int64(offsets[i]), source + np.int64(places[i]), WIDE)
    elif pieces == 3:
        for i in range(len(places)):
            copy(to + np.int64(offsets[i]), source + np.int64(places[i]), WIDE)
            copy(to + np.int64(offsets[i]) + WIDE, source + np.int64(places[i]) + WIDE, WIDE)
            copy(to + np.int64(offsets[i]) + 2 * WIDE, source + np.int64(places[i]) + 2 * WIDE, WIDE)
    else:
        for i in range(len(places)):
            copy(to + np.int64(offsets[i]), source + np.int64(places[i]), pieces * WIDE)
    return len(places)


def _letters(salt: int, space: int, target: int, count: int) -> int:
    """Fill a pool with random letters, on average every `space`th a space (0 = none)."""
    for i in range(count):
        bits = _draw(i, salt)
        letter = 97 + _low(bits, 26)
        put_byte(target + i, 32 if space > 0 and _high(bits, space) == 0 else letter)
    return count


turns = compiled(_I(_I, _IN, _I, _PAIRS), _turns)
times = compiled(_I(_TURNS_IN, _I, _I, _OUT), _times)
auction_ids = compiled(_I(_TURNS_IN, _I, _I, _I, _OUT), _auction_ids)
person_ids = compiled(_I(_TURNS_IN, _I, _IN, _I, _OUT), _person_ids)
own_ids = compiled(_I(_TURNS_IN, _I, _I, _OUT), _own_ids)
prices = compiled(_I(_TURNS_IN, _I, _FLOATS_IN, _OUT), _prices)
picks = compiled(_I(_TURNS_IN, _I, _I, _OUT), _picks)
channels = compiled(_I(_TURNS_IN, _I, _I, _I, _OUT), _channels)
listed_places = compiled(_I(_IN, _OFFSETS_IN, _OFFSETS, _OFFSETS), _listed_places)
listed_views = compiled(_I(_IN, _VIEWS_IN, _PAIRS), _listed_views)
stretch_places = compiled(_I(_TURNS_IN, _I, _IN, _OFFSETS, _OFFSETS), _stretch_places)
stretch_views = compiled(_I(_TURNS_IN, _I, _IN, _I, _PAIRS), _stretch_views)
copy_strings = compiled(_I(_OFFSETS_IN, _OFFSETS_IN, _I, _IN), _copy_strings)
letters = compiled(_I(_I, _I, _I, _I), _letters)
