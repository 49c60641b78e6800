"""Compiled loops of the Nexmark generator: fields of events as functions of the event's number.

Every field is drawn from a hash of (event number, salt), so a replay from any event is exact and columns nobody asked
for cost nothing. Compiled or loaded from the disk cache at import; the source's `preload` names this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.connector.compiled import njit, tuple_of, types
from penstock_connectors.formats.memory import compiled, copy, put_byte

_I = types.int64
_OUT = types.int64[::1]
_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS_IN = types.Array(types.float64, 1, "C", readonly=True)
_OFFSETS = types.int32[::1]
_OFFSETS_IN = types.Array(types.int32, 1, "C", readonly=True)
_TABLES_IN = types.Array(types.int32, 2, "C", readonly=True)
_NUMBERS, _PLACES = types.int64[:, ::1], types.int32[:, ::1]
_SETTINGS = tuple_of(_IN, _IN, _IN)

#: Nexmark's proportions: of 50 events in a row 1 is a person, 3 are auctions, 46 are bids.
EPOCH, PERSONS, AUCTIONS, BIDS = 50, 1, 3, 46
FIRST_ID = 1000
#: A bid may be for one of this many auctions (a person may act that many people) that are yet to come.
LEAD = 10
#: The hot auction, seller or bidder is the first of the last so many.
HOT_BATCH = 100
_ONE = np.uint64(1)
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


@njit(inline="always")
def _auction_of(bits: Any, epoch: Any, hot: Any, in_flight: Any) -> Any:
    """The auction a bid is for: with probability 1 - 1/`hot` the hot one, else one in flight."""
    last = epoch * AUCTIONS + AUCTIONS - 1
    least = max(last - in_flight, 0)
    cold = least + _high(bits, last - least + 1 + LEAD)
    return _either(_low(bits, hot) > 0, _hot(last), cold) + FIRST_ID


@njit(inline="always")
def _person_of(bits: Any, epoch: Any, hot: Any, active: Any) -> Any:
    """A bidder or seller; `hot` = (ratio, place of the hot one within its batch of people)."""
    near = min(epoch + 1, active)
    cold = epoch + 1 - near + _high(bits, near + LEAD)
    return _either(_low(bits, hot[0]) > 0, _hot(epoch) + hot[1], cold) + FIRST_ID


@njit(inline="always")
def _price_of(bits: Any, curve: Any) -> Any:
    """A price: 100 * 10^(6 u), u even in [0, 1), read off a curve of straight pieces."""
    pieces = np.uint64(len(curve) - 1)
    even = (bits >> np.uint64(12)) * pieces
    at = even >> np.uint64(52)
    part = np.float64(even & np.uint64((1 << 52) - 1)) / 4503599627370496.0
    low = curve[at]
    return np.int64(low + (curve[at + np.uint64(1)] - low) * part + 0.5)


@njit(inline="always")
def _channel_of(bits: Any, hot: Any, every: Any) -> Any:
    """The place of a bid's channel in a table: half are one of the `hot` first, half one of all the rest."""
    return _either(bits & np.uint64(1), _high(bits, hot), hot + _high(bits, every - hot))


def _auction_ids(numbers: Any, salt: int, hot: int, in_flight: int, out: Any) -> int:
    """Write the auctions that bids are for."""
    for i in range(len(out)):
        out[i] = _auction_of(_draw(numbers[i], salt), _epoch(numbers[i]), hot, in_flight)
    return len(out)


def _person_ids(numbers: Any, salt: int, hot: Any, active: int, out: Any) -> int:
    """Write bidders or sellers."""
    ratio, place = hot[0], hot[1]
    for i in range(len(out)):
        out[i] = _person_of(_draw(numbers[i], salt), _epoch(numbers[i]), (ratio, place), active)
    return len(out)


def _own_ids(numbers: Any, first: int, share: int, out: Any) -> int:
    """Write the ids of new persons or auctions: they are counted."""
    for i in range(len(out)):
        epoch = _epoch(numbers[i])
        out[i] = epoch * share + numbers[i] - epoch * EPOCH - first + FIRST_ID
    return len(out)


def _prices(numbers: Any, salt: int, curve: Any, out: Any) -> int:
    """Write prices."""
    for i in range(len(out)):
        out[i] = _price_of(_draw(numbers[i], salt), curve)
    return len(out)


def _picks(numbers: Any, salt: int, bound: int, out: Any) -> int:
    """Write an evenly drawn integer below `bound` for every event."""
    for i in range(len(out)):
        out[i] = _low(_draw(numbers[i], salt), bound)
    return len(out)


def _channels(numbers: Any, salt: int, hot: int, every: int, out: Any) -> int:
    """Write the place of every bid's channel in a table."""
    for i in range(len(out)):
        out[i] = _channel_of(_draw(numbers[i], salt), hot, every)
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


def _bids(settings: Any, curve: Any, tables: Any, numbers: Any, places: Any) -> int:
    """Write all of whole bids but the bytes of their strings: the same draws as column by column, in one pass.

    `settings` = what `bids.BidMaker` puts there; `tables` = offsets of channels and of URLs. `numbers` = auctions,
    bidders, prices, times; `places` = where channel, URL and extra begin, and their Arrow offsets.
    """
    where, salts, shape = settings
    split, splits, start_us, rate = where[1], where[2], where[3], where[4]
    of_auction, of_bidder, of_price, of_channel, of_extra = salts[0], salts[1], salts[2], salts[3], salts[4]
    hot_auction, in_flight, hot_bidder, active = shape[0], shape[1], (shape[2], shape[3]), shape[4]
    hot_channels, every, least, spread, room = shape[5], shape[6], shape[7], shape[8], shape[9]
    count, row = numbers.shape[1], 0
    turn, inside = where[0] // BIDS, where[0] % BIDS
    channel_end = url_end = extra_end = np.int64(0)
    while row < count:
        epoch = turn * splits + split
        number = epoch * EPOCH + PERSONS + AUCTIONS + inside
        whole = np.int64(np.uint64(number * 1000) // np.uint64(rate))
        rest = number * 1000 - whole * rate
        end = min(row + BIDS - inside, count)
        for i in range(np.uint64(row), np.uint64(end)):  # unsigned: numba tests every signed place
            numbers[0, i] = _auction_of(_draw(number, of_auction), epoch, hot_auction, in_flight)
            numbers[1, i] = _person_of(_draw(number, of_bidder), epoch, hot_bidder, active)
            numbers[2, i] = _price_of(_draw(number, of_price), curve)
            if rest >= rate:
                more = np.int64(np.uint64(rest) // np.uint64(rate))
                whole, rest = whole + more, rest - more * rate
            numbers[3, i] = start_us + whole * 1000
            rest += 1000
            pick = np.uint64(_channel_of(_draw(number, of_channel), hot_channels, every))
            places[0, i], places[3, i] = tables[0, pick], channel_end
            channel_end += np.int64(tables[0, pick + _ONE]) - np.int64(tables[0, pick])
            places[1, i], places[4, i] = tables[1, pick], url_end
            url_end += np.int64(tables[1, pick + _ONE]) - np.int64(tables[1, pick])
            bits = _draw(number, of_extra)
            size = least + _low(bits, spread)
            places[2, i], places[5, i] = _high(bits, room - size), extra_end
            extra_end += size
            number += 1
        row, turn, inside = end, turn + 1, np.int64(0)
    places[3, count], places[4, count], places[5, count] = channel_end, url_end, extra_end
    return row


def _copy_strings(places: Any, offsets: Any, source: int, target: Any) -> int:
    """Copy the strings at these places one behind the other; `target` = [address, pieces of the longest string].

    Both buffers have room behind their end. What a piece has too much is written over by the next string. The usual
    numbers of pieces stand there one by one: the compiler would make a call of a loop over them.
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
listed_places = compiled(_I(_IN, _OFFSETS_IN, _OFFSETS, _OFFSETS), _listed_places)
stretch_places = compiled(_I(_IN, _I, _IN, _OFFSETS, _OFFSETS), _stretch_places)
bids = compiled(_I(_SETTINGS, _FLOATS_IN, _TABLES_IN, _NUMBERS, _PLACES), _bids)
copy_strings = compiled(_I(_OFFSETS_IN, _OFFSETS_IN, _I, _IN), _copy_strings)
letters = compiled(_I(_I, _I, _I, _I), _letters)
