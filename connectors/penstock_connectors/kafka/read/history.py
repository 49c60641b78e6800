"""A topic's past as ranges of offsets, for a backfill; loads no Arrow. Called by `source.KafkaSourceFactory`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from penstock.connector.source import HistorySplit, SourceSplit
from penstock.core.errors import UsageError
from penstock_connectors.kafka.read.kafka_enumerator import KafkaEnumerator


def history(
    config: dict[str, Any], until: dict[str, Any], piece_rows: int | None, begin: dict[str, Any] | None = None
) -> tuple[HistorySplit, ...]:
    """Return every partition from where the job would start, or from `begin` on, up to the cut.

    Never beyond the source's own end; see `connector.source.HistoryFactory`.

    Raises:
        UsageError: a position is beyond the partition's end, or of none that exists; a partition has no position; a
            partition does not reach back to where it is to begin, or, behind a table, to the cut.
        ConnectorError: the broker cannot be reached or a topic does not exist.
    """
    if begin is not None:
        config = {**config, "start": "earliest"}
    own = KafkaEnumerator(config, first_run=True).discover(frozenset())
    starts = {split.id: int(split.state["offset"]) for split in own}
    if begin is not None:
        starts = _begins(config, begin, own)
    cuts = starts if "begin" in until else _cuts(config, until, own)
    if begin is not None:
        _require_there(config, until, own, cuts)
    return tuple(_split(split, starts[split.id], cuts[split.id], piece_rows, table=begin is not None) for split in own)


def _begins(config: dict[str, Any], begin: dict[str, Any], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    """Return where partitions begin behind a table: from there on all that was written must still be there."""
    if "timestamp" in begin:
        found = _ends(config, {"timestamp": begin["timestamp"]})
        starts = {split.id: found.get(split.id, 0) for split in own}
    else:
        starts = {split_id: int(at) for split_id, at in begin["positions"].items()}
        _require_all(starts, own)
    ends = _ends(config, "latest")
    for split in own:
        start, first, end = starts[split.id], int(split.state["offset"]), ends.get(split.id, 0)
        if "timestamp" in begin and start == first > 0:
            msg = f"{split.id!r} has nothing from before the cut-over any more: offsets below {first} are deleted"
            raise UsageError(msg, hint="rows may be missing that were written since; cut over at a later time")
        if start < first:
            msg = f"a gap: offsets {start} to {first - 1} of {split.id!r} are neither in the table nor in the topic"
            raise UsageError(msg, hint="the topic has deleted them; the table has to hold them")
        if start > max(first, end):
            msg = f"the table reaches to offset {start} of {split.id!r}, whose topic ends at {end}"
            raise UsageError(msg, hint="is it a table of this topic, of its present life?")
    return starts


def _require_there(
    config: dict[str, Any], until: dict[str, Any], own: tuple[SourceSplit, ...], cuts: dict[str, int]
) -> None:
    """Refuse cuts before what partitions still have: the live job could not go on there, nor the table end at it."""
    for split in own:
        first, stop, cut = int(split.state["offset"]), split.state["stop"], cuts[split.id]
        ended = stop is not None and stop <= cut
        at, given = (stop, config["bounded"]) if ended else (cut, until)
        # a time before all that is left is looked up as the first that is
        by_time = isinstance(given, dict) and "timestamp" in given and at == first > 0
        if by_time or (at < first and not ended):
            end = f"{'the source ends' if ended else 'the cut lies'}{', it may be,' if by_time else ''}"
            msg = f"{end} before all that {split.id!r} still has: offsets below {first} are deleted"
            raise UsageError(msg, hint=f"give positions of {first} or behind, or a later time")


def _cuts(config: dict[str, Any], until: dict[str, Any], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    if "positions" in until:
        return _given(config, {split_id: int(at) for split_id, at in until["positions"].items()}, own)
    bounded: Any = {"timestamp": until["timestamp"]} if until else "latest"
    cuts = _ends(config, bounded)
    # a partition made between the two look-ups: the live job reads it from its beginning
    return {split.id: cuts.get(split.id, int(split.state["offset"])) for split in own}


def _require_all(positions: dict[str, int], own: tuple[SourceSplit, ...]) -> None:
    known = {split.id for split in own}
    unknown = sorted(set(positions) - known)
    if unknown:
        raise UsageError(f"there is no partition {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}")
    missing = sorted(known - set(positions))
    if missing:
        msg = f"no position is given for {', '.join(missing)}"
        raise UsageError(msg, hint="give every partition one; the one it starts at reads nothing of it")


def _given(config: dict[str, Any], positions: dict[str, int], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    """Return positions that the user gave, which must be there to be read: a task would wait for them for ever."""
    _require_all(positions, own)
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


def _split(split: SourceSplit, start: int, cut: int, piece_rows: int | None, *, table: bool) -> HistorySplit:
    first, stop = int(split.state["offset"]), split.state["stop"]
    cut = cut if stop is None else min(cut, stop)
    if not table:
        cut = max(first, cut)  # what is not in the topic any more cannot be where the live job goes on
    begin = min(start, cut)
    bounds = [*range(begin, cut, piece_rows or max(1, cut - begin)), cut]
    pairs = list(pairwise(bounds)) or [(begin, begin)]
    pieces = tuple(
        SourceSplit(id=split.id, state={**split.state, "offset": low, "stop": high}, finished=low >= high)
        for low, high in pairs
    )
    rest = msgspec.structs.replace(
        split, state={**split.state, "offset": cut}, finished=stop is not None and cut >= stop
    )
    return HistorySplit(pieces, rest, begin, start)
