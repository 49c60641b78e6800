"""Whole bids: all columns in one compiled pass, where a column at a time would read the events' numbers seven times.

Called by `events` where every column of a bid is asked for; what it makes is the same, draw by draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_connectors.nexmark import _kernels as kernels
from penstock_connectors.nexmark.strings import BID_EXTRA, HOT_CHANNELS, POOL_BYTES, filler_sizes, salt

if TYPE_CHECKING:
    from penstock_connectors.nexmark.events import NexmarkPattern
    from penstock_connectors.nexmark.strings import Strings

_DRAWN = ("auction", "bidder", "price", "channel", "extra")


class BidMaker:
    """Makes whole bids of one pattern."""

    def __init__(self, pattern: NexmarkPattern, strings: Strings, curve: np.ndarray[Any, Any], hot_bidder: int) -> None:
        """`curve` is that of prices, `hot_bidder` the place of the hot one within its batch of people."""
        self._pattern = pattern
        self._strings = strings
        self._curve = curve
        self._salts = np.array([salt(pattern.seed, field) for field in _DRAWN], np.int64)
        # hot channels and all of them, then the sizes of fillers and of the pool they are cut from
        strings_drawn = (HOT_CHANNELS, strings.channels.count, *filler_sizes(BID_EXTRA), POOL_BYTES)
        people_drawn = (pattern.hot_bidder_ratio, hot_bidder, pattern.active_people)
        auctions_drawn = (pattern.hot_auction_ratio, pattern.auctions_in_flight)
        self._shape = np.array([*auctions_drawn, *people_drawn, *strings_drawn], np.int64)
        self._tables = np.stack([strings.channels.offsets, strings.urls.offsets])

    def columns(self, split: int, start: int, count: int) -> dict[str, pa.Array]:
        """Return rows start .. start+count-1 of one split, by column."""
        pattern = self._pattern
        where = np.array([start, split, pattern.splits, pattern.start_us, pattern.rate], np.int64)
        numbers, places = np.empty((4, count), np.int64), np.empty((6, count + 1), np.int32)
        kernels.bids((where, self._salts, self._shape), self._curve, self._tables, numbers, places)
        begin = places[:3, :count]
        return {
            "auction": pa.array(numbers[0]),
            "bidder": pa.array(numbers[1]),
            "price": pa.array(numbers[2]),
            "channel": self._strings.channels.copied(begin[0], places[3]),
            "url": self._strings.urls.copied(begin[1], places[4]),
            "dateTime": pa.array(numbers[3]).view(pa.timestamp("us", tz="UTC")),
            "extra": self._strings.extra_of_bids(begin[2], places[5]),
        }
