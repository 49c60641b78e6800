"""Compiled loops of the Nexmark generator: fields of events as functions of the event's number.

Every field is drawn from a hash of (event number, salt), so a replay from any event is exact and columns nobody asked
for cost nothing. Compiled or loaded from the disk cache at import; the source's `preload` names this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.connector.compiled import njit, types
from penstock_connectors.formats.memory import compiled, copy, put_byte

_I = types.int64
_OUT = types.int64[::1]
_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS_IN = types.Array(types.float64, 1, "C", readonly=True)
_OFFSETS = types.int32[::1]
_OFFSETS_IN = types.Array(types.int32, 1, "C", readonly=True)

#: Nexmark's proportions: of 50 events in a row 1 is a person, 3 are auctions, 46 are bids.
EPOCH, PERSONS, AUCTIONS, BIDS = 50, 1, 3, 46
FIRST_ID = 1000
#: A bid may be for one of this many auctions (a person may act that many people) that are yet to come.
LEAD = 10
#: The hot auction, seller or bidder is the first of the last so many.
HOT_BATCH = 100
#: Strings are copied in pieces of this many bytes, as many as the longest has; buffers have that much room behind their
#: end. So there is no branch on a length, which could not be predicted.
WIDE = 32


@njit(inline="always")
def _draw(number: Any, salt: Any) -> Any:
    """64 random bits: the finaliser of splitmix64 over number and salt."""
    mixed = np.uint64(number) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@njit(inline="always")
def _epoch(number: Any) -> Any:
    """The epoch of an event; unsigned, because the compiler then divides by one multiplication."""
    return np.int64(np.uint64(number) // np.uint64(EPOCH))


@njit(inline="always")
def _hot(last: Any) -> Any:
    """The first of the last batch of auctions or people."""
    return np.int64(np.uint64(last) // np.uint64(HOT_BATCH) * np.uint64(HOT_BATCH))


@njit(inline="always")
def _low(bits: Any, bound: Any) -> Any:
    """An evenly drawn integer below `bound` from the low half of `bits`."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(bound)) >> np.uint64(32))


@njit(inline="always")
def _high(bits: Any, bound: Any) -> Any:
    """An evenly drawn integer below `bound` from the high half of `bits`."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@njit(inline="always")
def _either(condition: Any, one: Any, other: Any) -> Any:
    """Return `one` or `other` without a branch, which could not be predicted: the compiler knows no way to make one."""
    return other ^ ((one ^ other) & -np.int64(condition))


def _numbers(start: int, place: Any, out: Any) -> int:
    """Write the event numbers of rows `start`... of a split.

    `place` = [split, splits, first event of the kind within an epoch, events of the kind in an epoch].
    """
    split, splits, first, share = place[0], place[1], place[2], place[3]
    epoch = start // share
    inside = start - epoch * share
    base = (epoch * splits + split) * EPOCH + first
    for i in range(len(out)):
        out[i] = base + inside
        inside += 1
        if inside == share:
            inside = 0
            base += splits * EPOCH
    return len(out)


def _times(numbers: Any, start_us: int, rate: int, out: Any) -> int:
    """Write event times in microseconds, whole milliseconds as in Nexmark's schema.

    `number * 1000 div rate` is carried on from event to event: a division an event would take longer than all the rest.
    """
    last = whole = rest = np.int64(0)
    for i in range(len(out)):
        rest += (numbers[i] - last) * 1000
        last = numbers[i]
        if rest >= rate:
            more = np.int64(np.uint64(rest) // np.uint64(rate))
            whole += more
            rest -= more * rate
        out[i] = start_us + whole * 1000
    return len(out)


def _auction_ids(numbers: Any, salt: int, hot: int, in_flight: int, out: Any) -> int:
    """Write the auctions that bids are for: with probability 1 - 1/`hot` the hot one, else one in flight."""
    for i in range(len(out)):
        last = _epoch(numbers[i]) * AUCTIONS + AUCTIONS - 1
        bits = _draw(numbers[i], salt)
        least = max(last - in_flight, 0)
        cold = least + _high(bits, last - least + 1 + LEAD)
        out[i] = _either(_low(bits, hot) > 0, _hot(last), cold) + FIRST_ID
    return len(out)


def _person_ids(numbers: Any, salt: int, hot: Any, active: int, out: Any) -> int:
    """Write bidders or sellers; `hot` = [ratio, place of the hot one within its batch of people]."""
    ratio, place = hot[0], hot[1]
    for i in range(len(out)):
        last = _epoch(numbers[i])
        bits = _draw(numbers[i], salt)
        near = min(last + 1, active)
        cold = last + 1 - near + _high(bits, near + LEAD)
        out[i] = _either(_low(bits, ratio) > 0, _hot(last) + place, cold) + FIRST_ID
    return len(out)


def _own_ids(numbers: Any, first: int, share: int, out: Any) -> int:
    """Write the ids of new persons or auctions: they are counted."""
    for i in range(len(out)):
        epoch = _epoch(numbers[i])
        out[i] = epoch * share + numbers[i] - epoch * EPOCH - first + FIRST_ID
    return len(out)


def _prices(numbers: Any, salt: int, curve: Any, out: Any) -> int:
    """Write prices: 100 * 10^(6 u), u even in [0, 1), read off a curve of so many straight pieces."""
    pieces = len(curve) - 1
    for i in range(len(out)):
        bits = _draw(numbers[i], salt) >> np.uint64(12)
        at = (bits * np.uint64(pieces)) >> np.uint64(52)
        part = np.float64((bits * np.uint64(pieces)) & np.uint64((1 << 52) - 1)) / 4503599627370496.0
        low = curve[at]
        out[i] = np.int64(low + (curve[at + np.uint64(1)] - low) * part + 0.5)
    return len(out)


def _picks(numbers: Any, salt: int, bound: int, out: Any) -> int:
    """Write an evenly drawn integer below `bound` for every event."""
    for i in range(len(out)):
        out[i] = _low(_draw(numbers[i], salt), bound)
    return len(out)


def _channels(numbers: Any, salt: int, hot: int, every: int, out: Any) -> int:
    """Write the place of every bid's channel in a table: half are one of the `hot` first, half one of all the rest."""
    for i in range(len(out)):
        bits = _draw(numbers[i], salt)
        out[i] = _either(bits & np.uint64(1), _high(bits, hot), hot + _high(bits, every - hot))
    return len(out)


def _listed_places(picks: Any, offsets: Any, places: Any, out: Any) -> int:
    """Write where the picked strings of a table begin, and Arrow offsets of the copies; returns their bytes."""
    total = np.int64(0)
    for i in range(len(picks)):
        first = np.int64(offsets[picks[i]])
        places[i] = first
        out[i] = total
        total += np.int64(offsets[picks[i] + 1]) - first
    out[len(picks)] = total
    return int(total)


def _stretch_places(numbers: Any, salt: int, sizes: Any, places: Any, out: Any) -> int:
    """Write where in a pool each event's stretch begins, and Arrow offsets of the copies; returns their bytes.

    `sizes` = [least bytes, how many more at most plus one, bytes of the pool].
    """
    least, spread, room = sizes[0], sizes[1], sizes[2]
    total = 0
    for i in range(len(numbers)):
        bits = _draw(numbers[i], salt)
        size = least + _low(bits, spread)
        places[i] = _high(bits, room - size)
        out[i] = total
        total += size
    out[len(numbers)] = total
    return total


def _copy_strings(places: Any, offsets: Any, source: int, target: Any) -> int:
    """Copy the strings at these places one behind the other; `target` = [address, pieces of the longest string].

    Both buffers have room behind their end. What a piece has too much is written over by the next string. The usual
    numbers of pieces stand there one by one: the compiler would make a call of a loop over them.
    """
    to, pieces = target[0], target[1]
    if pieces == 1:
        for i in range(len(places)):
            copy(to + np.int64(offsets[i]), source + places[i], WIDE)
    elif pieces == 3:
        for i in range(len(places)):
            copy(to + np.int64(offsets[i]), source + places[i], WIDE)
            copy(to + np.int64(offsets[i]) + WIDE, source + places[i] + WIDE, WIDE)
            copy(to + np.int64(offsets[i]) + 2 * WIDE, source + places[i] + 2 * WIDE, WIDE)
    else:
        for i in range(len(places)):
            copy(to + np.int64(offsets[i]), source + places[i], pieces * WIDE)
    return len(places)


def _letters(salt: int, space: int, target: int, count: int) -> int:
    """Fill a pool with random letters, every `space`th of them on average a space (0 = none)."""
    for i in range(count):
        bits = _draw(i, salt)
        letter = 97 + _low(bits, 26)
        put_byte(target + i, 32 if space > 0 and _high(bits, space) == 0 else letter)
    return count


numbers = compiled(_I(_I, _IN, _OUT), _numbers)
times = compiled(_I(_IN, _I, _I, _OUT), _times)
auction_ids = compiled(_I(_IN, _I, _I, _I, _OUT), _auction_ids)
person_ids = compiled(_I(_IN, _I, _IN, _I, _OUT), _person_ids)
own_ids = compiled(_I(_IN, _I, _I, _OUT), _own_ids)
prices = compiled(_I(_IN, _I, _FLOATS_IN, _OUT), _prices)
picks = compiled(_I(_IN, _I, _I, _OUT), _picks)
channels = compiled(_I(_IN, _I, _I, _I, _OUT), _channels)
listed_places = compiled(_I(_IN, _OFFSETS_IN, _OUT, _OFFSETS), _listed_places)
stretch_places = compiled(_I(_IN, _I, _IN, _OUT, _OFFSETS), _stretch_places)
copy_strings = compiled(_I(_IN, _OFFSETS_IN, _I, _IN), _copy_strings)
letters = compiled(_I(_I, _I, _I, _I), _letters)
