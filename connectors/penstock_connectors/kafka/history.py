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
        UsageError: a position is beyond the partition's end, or of none that exists; a partition has no position.
        ConnectorError: the broker cannot be reached or a topic does not exist.
    """
    own = KafkaEnumerator(config, first_run=True).discover(frozenset())
    cuts = _cuts(config, until, own)
    return tuple(_split(split, cuts[split.id], piece_rows) for split in own)


def _cuts(config: dict[str, Any], until: dict[str, Any], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    if "positions" in until:
        return _given(config, {split_id: int(at) for split_id, at in until["positions"].items()}, own)
    bounded: Any = {"timestamp": until["timestamp"]} if until else "latest"
    cuts = _ends(config, bounded)
    # a partition made between the two look-ups: the live job reads it from its beginning
    return {split.id: cuts.get(split.id, int(split.state["offset"])) for split in own}


def _given(config: dict[str, Any], positions: dict[str, int], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    """Return positions that the user gave, which must be there to be read: a task would wait for them for ever."""
    known = {split.id for split in own}
    unknown = sorted(set(positions) - known)
    if unknown:
        raise UsageError(f"there is no partition {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}")
    missing = sorted(known - set(positions))
    if missing:
        msg = f"no position is given for {', '.join(missing)}"
        raise UsageError(msg, hint="give every partition one; the one it starts at reads nothing of it")
    ends = _ends(config, "latest")
    for split in own:
        stop, end = split.state["stop"], max(ends.get(split.id, 0), int(split.state["offset"]))
        cut = positions[split.id] if stop is None else min(positions[split.id], stop)
        if cut > end:
            msg = f"position {cut} of {split.id!r} is beyond its end: what is committed ends at {end}"
            raise UsageError(msg, hint="give that one, or wait until more is written")
    return positions


def _ends(config: dict[str, Any], bounded: Any) -> dict[str, int]:
    found = KafkaEnumerator({**config, "start": "earliest", "bounded": bounded}, first_run=True).discover(frozenset())
    return {split.id: int(split.state["stop"]) for split in found}


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
