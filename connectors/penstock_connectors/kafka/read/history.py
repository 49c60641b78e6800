"""The history of Kafka topics for a backfill: partitions cut into offset ranges that are read in parallel.

Called by the source's factory (`connector.source.HistoryFactory`) in the process that runs the backfill.
"""

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
    """Return every partition from the job's start position, or from `begin` on, up to the end position.

    Never beyond the source's own end; see `connector.source.HistoryFactory`.

    Raises:
        UsageError: a position is beyond the partition's end, or of an unknown partition; a partition has no position;
        or a partition's first records are already deleted that the backfill, or the live job after it, would need.
        ConnectorError: the broker cannot be reached or a topic does not exist.
    """
    if begin is not None:
        config = {**config, "start": "earliest"}
    own = KafkaEnumerator(config, first_run=True).discover(frozenset())
    starts = {split.id: int(split.state["offset"]) for split in own}
    if begin is not None:
        starts = _begins(config, begin, own)
    end_offsets = starts if "begin" in until else _end_offsets(config, until, own)
    if begin is not None:
        _require_there(config, until, own, end_offsets)
    return tuple(
        _history_split(split, starts[split.id], end_offsets[split.id], piece_rows, table=begin is not None)
        for split in own
    )


def _begins(config: dict[str, Any], begin: dict[str, Any], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    """Return where partitions begin after a table: all records from there on must still exist."""
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
            msg = f"{split.id!r} no longer has records from before the cut-over: offsets below {first} are deleted"
            raise UsageError(msg, hint="rows written since then may be missing; cut over at a later time")
        if start < first:
            msg = f"gap: offsets {start} to {first - 1} of {split.id!r} are neither in the table nor in the topic"
            raise UsageError(msg, hint="the topic has deleted them, so the table has to contain them")
        if start > max(first, end):
            msg = f"the table reaches offset {start} of {split.id!r}, but the topic ends at {end}"
            raise UsageError(
                msg, hint="check that the table is of this topic, and that the topic was not created again since"
            )
    return starts


def _require_there(
    config: dict[str, Any], until: dict[str, Any], own: tuple[SourceSplit, ...], end_offsets: dict[str, int]
) -> None:
    """Refuse end positions before the first record of a partition.

    Neither the live job can continue there, nor the table end there.
    """
    for split in own:
        first, stop, end_offset = int(split.state["offset"]), split.state["stop"], end_offsets[split.id]
        ended = stop is not None and stop <= end_offset
        at, given = (stop, config["bounded"]) if ended else (end_offset, until)
        # a time before all remaining records resolves to the first of them
        by_time = isinstance(given, dict) and "timestamp" in given and at == first > 0
        if by_time or (at < first and not ended):
            end = f"{'the source ends' if ended else 'the end position is'}{' (possibly)' if by_time else ''}"
            msg = f"{end} before the first record of {split.id!r}: offsets below {first} are deleted"
            raise UsageError(msg, hint=f"give positions of at least {first}, or a later time")


def _end_offsets(config: dict[str, Any], until: dict[str, Any], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    if "positions" in until:
        return _given(config, {split_id: int(at) for split_id, at in until["positions"].items()}, own)
    bounded: Any = {"timestamp": until["timestamp"]} if until else "latest"
    end_offsets = _ends(config, bounded)
    # the partition was created between the two look-ups: the live job reads it from its beginning
    return {split.id: end_offsets.get(split.id, int(split.state["offset"])) for split in own}


def _require_all(positions: dict[str, int], own: tuple[SourceSplit, ...]) -> None:
    known = {split.id for split in own}
    unknown = sorted(set(positions) - known)
    if unknown:
        raise UsageError(f"there is no partition {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}")
    missing = sorted(known - set(positions))
    if missing:
        msg = f"{', '.join(missing)} has no position"
        raise UsageError(msg, hint="give each partition one; its start position means that nothing is read")


def _given(config: dict[str, Any], positions: dict[str, int], own: tuple[SourceSplit, ...]) -> dict[str, int]:
    """Return the user's positions, after checking that they can be reached: a task would otherwise wait forever."""
    _require_all(positions, own)
    ends = _ends(config, "latest")
    for split in own:
        stop, end = split.state["stop"], max(ends.get(split.id, 0), int(split.state["offset"]))
        end_offset = positions[split.id] if stop is None else min(positions[split.id], stop)
        if end_offset > end:
            msg = f"position {end_offset} of {split.id!r} is after its end: committed records end at {end}"
            raise UsageError(msg, hint="use that position, or wait until more is written")
    return positions


def _ends(config: dict[str, Any], bounded: Any) -> dict[str, int]:
    found = KafkaEnumerator({**config, "start": "earliest", "bounded": bounded}, first_run=True).discover(frozenset())
    return {split.id: int(split.state["stop"]) for split in found}


def _history_split(
    split: SourceSplit, start: int, end_offset: int, piece_rows: int | None, *, table: bool
) -> HistorySplit:
    first, stop = int(split.state["offset"]), split.state["stop"]
    end_offset = end_offset if stop is None else min(end_offset, stop)
    if not table:
        end_offset = max(first, end_offset)  # the live job cannot continue at deleted records
    begin = min(start, end_offset)
    bounds = [*range(begin, end_offset, piece_rows or max(1, end_offset - begin)), end_offset]
    pairs = list(pairwise(bounds)) or [(begin, begin)]
    pieces = tuple(
        SourceSplit(id=split.id, state={**split.state, "offset": low, "stop": high}, finished=low >= high)
        for low, high in pairs
    )
    rest = msgspec.structs.replace(
        split, state={**split.state, "offset": end_offset}, finished=stop is not None and end_offset >= stop
    )
    return HistorySplit(pieces, rest, begin, start)
