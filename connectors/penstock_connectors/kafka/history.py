"""A topic's past as ranges of offsets, for a backfill; loads no Arrow. Called by `source.KafkaSourceFactory`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from penstock.connector.source import HistorySplit, SourceSplit
from penstock.core.errors import UsageError
from penstock_connectors.kafka.enumerator import KafkaEnumerator


def history(config: dict[str, Any], until: dict[str, Any], piece_rows: int | None) -> tuple[HistorySplit, ...]:
    """Return every partition from where the job would start up to the cut, never beyond the source's own end.

    Raises:
        UsageError: a position for a partition that does not exist.
        ConnectorError: the broker cannot be reached or a topic does not exist.
    """
    own = KafkaEnumerator(config, first_run=True).discover(frozenset())
    cuts = _cuts(config, until, own)
    return tuple(_split(split, cuts[split.id], piece_rows) for split in own)


def _cuts(config: dict[str, Any], until: dict[str, Any], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    if "positions" in until:
        positions = {split.id: int(split.state["offset"]) for split in own}
        unknown = sorted(set(until["positions"]) - set(positions))
        if unknown:
            raise UsageError(f"there is no partition {unknown[0]!r}", hint=f"there are {', '.join(positions)}")
        return positions | {split_id: int(offset) for split_id, offset in until["positions"].items()}
    bounded: Any = {"timestamp": until["timestamp"]} if until else "latest"
    found = KafkaEnumerator({**config, "start": "earliest", "bounded": bounded}, first_run=True).discover(frozenset())
    cuts = {split.id: int(split.state["stop"]) for split in found}
    # a partition made between the two look-ups: the live job reads it from its beginning
    return {split.id: cuts.get(split.id, int(split.state["offset"])) for split in own}


def _split(split: SourceSplit, cut: int, piece_rows: int | None) -> HistorySplit:
    start, stop = int(split.state["offset"]), split.state["stop"]
    cut = max(start, cut if stop is None else min(cut, stop))
    bounds = [*range(start, cut, piece_rows or max(1, cut - start)), cut]
    pairs = list(pairwise(bounds)) or [(start, start)]
    pieces = tuple(
        SourceSplit(id=split.id, state={**split.state, "offset": low, "stop": high}, finished=low >= high)
        for low, high in pairs
    )
    rest = msgspec.structs.replace(
        split, state={**split.state, "offset": cut}, finished=stop is not None and cut >= stop
    )
    return HistorySplit(pieces, rest)
