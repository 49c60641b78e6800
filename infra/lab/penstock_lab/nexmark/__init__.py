"""The event generator of the Nexmark benchmark: persons, auctions and bids, the same for the same settings."""

from penstock_lab.nexmark.events import AUCTION_SCHEMA, BID_SCHEMA, PERSON_SCHEMA, NexmarkPattern, events
from penstock_lab.nexmark.source import NexmarkSource, NexmarkSourceFactory
from penstock_lab.nexmark.strings import Text

__all__ = [
    "AUCTION_SCHEMA",
    "BID_SCHEMA",
    "PERSON_SCHEMA",
    "NexmarkPattern",
    "NexmarkSource",
    "NexmarkSourceFactory",
    "Text",
    "events",
]
