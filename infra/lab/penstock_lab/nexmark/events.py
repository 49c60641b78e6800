"""Nexmark's events as pure functions of their number: the columns of each kind, and batches with any of them.

The stream is that of Nexmark's generator: 50 consecutive events are 1 person, 3 auctions and 46 bids; event number n
happens at `start + n / rate`. Splits take these epochs of 50 in turn, so a stream is the same for any number of splits.
Random fields follow the distributions of Nexmark's generator, with other values. Called by the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from penstock_lab.nexmark import _kernels as kernels
from penstock_lab.nexmark.strings import Strings, Text, rows_of, salt

Kind = Literal["bid", "auction", "person"]
_TIME = pa.timestamp("us", tz="UTC")


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


BID_SCHEMA = _schema(
    auction=pa.int64(),
    bidder=pa.int64(),
    price=pa.int64(),
    channel=pa.string(),
    url=pa.string(),
    dateTime=_TIME,
    extra=pa.string(),
)
AUCTION_SCHEMA = _schema(
    id=pa.int64(),
    itemName=pa.string(),
    description=pa.string(),
    initialBid=pa.int64(),
    reserve=pa.int64(),
    dateTime=_TIME,
    expires=_TIME,
    seller=pa.int64(),
    category=pa.int64(),
    extra=pa.string(),
)
PERSON_SCHEMA = _schema(
    id=pa.int64(),
    name=pa.string(),
    emailAddress=pa.string(),
    creditCard=pa.string(),
    city=pa.string(),
    state=pa.string(),
    dateTime=_TIME,
    extra=pa.string(),
)
SCHEMAS: dict[Kind, pa.Schema] = {"bid": BID_SCHEMA, "auction": AUCTION_SCHEMA, "person": PERSON_SCHEMA}
#: Per kind: its first position within an epoch, and its number of events per epoch.
_PLACES: dict[Kind, tuple[int, int]] = {
    "person": (0, kernels.PERSONS),
    "auction": (kernels.PERSONS, kernels.AUCTIONS),
    "bid": (kernels.PERSONS + kernels.AUCTIONS, kernels.BIDS),
}
_CATEGORIES, _FIRST_CATEGORY = 5, 10
_CURVE = 100.0 * 10.0 ** (6.0 * np.arange(4097) / 4096)
_HOT_SELLER, _HOT_BIDDER = 0, 1

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class NexmarkPattern(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the events; the defaults are Nexmark's."""

    kind: Kind = "bid"
    #: Columns to generate, in this order; empty = all.
    columns: tuple[str, ...] = ()
    splits: int = 4
    #: Events (of all kinds) per second of event time.
    rate: int = 10_000
    #: Event time of event 0, microseconds since the epoch.
    start_us: int = 1_700_000_000_000_000
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    auctions_in_flight: int = 100
    active_people: int = 1000
    seed: int = 0
    text: Text = "copied"

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        whole = SCHEMAS[self.kind]
        fields = [whole.field(name) for name in self.columns or whole.names]
        if self.text == "views":
            fields = [f.with_type(pa.string_view()) if pa.types.is_string(f.type) else f for f in fields]
        return pa.schema(fields)

    def rows(self, events: int, split: int) -> int:
        """Return the rows of the kind for a split among the first `events` events of the stream."""
        first, share = _PLACES[self.kind]
        epochs, rest = divmod(events, kernels.EPOCH)
        rows = (epochs + self.splits - 1 - split) // self.splits * share
        return rows + (min(max(rest - first, 0), share) if epochs % self.splits == split else 0)


class EventMaker:
    """Makes batches of one pattern; keeps the tables from which strings are drawn."""

    def __init__(self, pattern: NexmarkPattern) -> None:
        """Prepare; tables are made when first needed."""
        self._pattern = pattern
        self._strings = Strings(pattern.seed, pattern.text)
        self._schema = pattern.schema

    def batch(self, split: int, start: int, count: int) -> pa.RecordBatch:
        """Return rows start .. start+count-1 of one split."""
        pattern = self._pattern
        first, share = _PLACES[pattern.kind]
        turns = np.empty((count // share + 3, 2), np.int64)
        found = kernels.turns(start, np.array([split, pattern.splits, first, share], np.int64), count, turns)
        make = _Columns(pattern, self._strings, turns[: found + 1]).makers()
        return pa.RecordBatch.from_arrays([make[name]() for name in self._schema.names], schema=self._schema)


class _Columns:
    """The columns of one batch, each made on request."""

    def __init__(self, pattern: NexmarkPattern, strings: Strings, turns: Int64s) -> None:
        self._pattern = pattern
        self._strings = strings
        self._turns = turns
        self._rows = rows_of(turns)

    def makers(self) -> dict[str, Callable[[], pa.Array]]:
        return {"bid": self._bid, "auction": self._auction, "person": self._person}[self._pattern.kind]()

    def _bid(self) -> dict[str, Callable[[], pa.Array]]:
        strings, turns, pattern = self._strings, self._turns, self._pattern
        return {
            "auction": lambda: self._int(
                kernels.auction_ids, "auction", pattern.hot_auction_ratio, pattern.auctions_in_flight
            ),
            "bidder": lambda: self._person_id("bidder", pattern.hot_bidder_ratio, _HOT_BIDDER),
            "price": lambda: self._price("price"),
            "channel": lambda: strings.channel(turns),
            "url": lambda: strings.url(turns),
            "dateTime": self._time,
            "extra": lambda: strings.filler(turns, 100 - 32),
        }

    def _auction(self) -> dict[str, Callable[[], pa.Array]]:
        strings, turns, pattern = self._strings, self._turns, self._pattern
        return {
            "id": lambda: self._own_id("auction"),
            "itemName": lambda: strings.words(turns, "itemName", 20),
            "description": lambda: strings.words(turns, "description", 100),
            "initialBid": lambda: self._price("initialBid"),
            "reserve": self._reserve,
            "dateTime": self._time,
            "expires": self._expires,
            "seller": lambda: self._person_id("seller", pattern.hot_seller_ratio, _HOT_SELLER),
            "category": lambda: pa.array(self._drawn("category", _CATEGORIES) + _FIRST_CATEGORY),
            "extra": lambda: strings.filler(turns, 500 - 112),
        }

    def _person(self) -> dict[str, Callable[[], pa.Array]]:
        strings, turns = self._strings, self._turns
        makers: dict[str, Callable[[], pa.Array]] = {
            "id": lambda: self._own_id("person"),
            "dateTime": self._time,
            "extra": lambda: strings.filler(turns, 200 - 60),
        }
        for name in ("name", "emailAddress", "creditCard", "city", "state"):
            makers[name] = lambda name=name: strings.listed(turns, name)  # type: ignore[misc]
        return makers

    # --- numbers ----------------------------------------------------------------------------------------------------

    def _int(self, kernel: Any, name: str, *settings: Any) -> pa.Array:
        out = np.empty(self._rows, np.int64)
        kernel(self._turns, salt(self._pattern.seed, name), *settings, out)
        return pa.array(out)

    def _drawn(self, name: str, bound: int) -> Int64s:
        out = np.empty(self._rows, np.int64)
        kernels.picks(self._turns, salt(self._pattern.seed, name), bound, out)
        return out

    def _price(self, name: str) -> pa.Array:
        return self._int(kernels.prices, name, _CURVE)

    def _person_id(self, name: str, ratio: int, place: int) -> pa.Array:
        return self._int(kernels.person_ids, name, np.array([ratio, place], np.int64), self._pattern.active_people)

    def _own_id(self, kind: Kind) -> pa.Array:
        out = np.empty(self._rows, np.int64)
        kernels.own_ids(self._turns, *_PLACES[kind], out)
        return pa.array(out)

    def _times(self) -> Int64s:
        out = np.empty(self._rows, np.int64)
        kernels.times(self._turns, self._pattern.start_us, self._pattern.rate, out)
        return out

    def _time(self) -> pa.Array:
        return pa.array(self._times()).view(_TIME)

    def _reserve(self) -> pa.Array:
        return pa.array(self._price("initialBid").to_numpy() + self._price("reserve").to_numpy())

    def _expires(self) -> pa.Array:
        """Return the ends of auctions: an auction lasts on average until as many others have begun as are in flight."""
        pattern = self._pattern
        horizon = pattern.auctions_in_flight * kernels.EPOCH // kernels.AUCTIONS * 1000 // pattern.rate
        length = self._drawn("expires", max(2 * horizon, 1)) + 1
        return pa.array(self._times() + length * 1000).view(_TIME)


def events(pattern: NexmarkPattern, count: int, *, rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the pattern's kind among the first `count` events of the stream, split by split."""
    maker = EventMaker(pattern)
    for split in range(pattern.splits):
        whole = pattern.rows(count, split)
        for start in range(0, whole, rows):
            yield maker.batch(split, start, min(rows, whole - start))
