"""The event generator of the Nexmark benchmark: persons, auctions and bids, the same for the same settings."""

from penstock_connectors.nexmark.events import AUCTION_SCHEMA, BID_SCHEMA, PERSON_SCHEMA, NexmarkPattern, events
from penstock_connectors.nexmark.source import NexmarkSource, NexmarkSourceFactory
from penstock_connectors.nexmark.strings import Text

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
