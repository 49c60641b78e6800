"""Start and end of reading: the user's `start=` and `bounded=` as JSON-able values, and as offsets.

Values: `"earliest"`, `"latest"`, `"group"`, `{"timestamp": ms}`, `{"offsets": [[topic, partition, offset], ...]}`.
Built by `source.KafkaSource`, resolved by `enumerator`; imported by the control plane: no client library, no Arrow.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.errors import ConnectorError, UsageError, did_you_mean

if TYPE_CHECKING:
    from penstock_connectors.kafka.client.metadata import ClusterMetadata
    from penstock_connectors.kafka.client.properties import PartitionId

#: From here on, a number is taken for seconds or microseconds of a present time: 1973 in s, 5138 in ms.
_SECONDS, _MICROSECONDS = 10**8, 10**14
_HINT = "use 'earliest', 'latest', 'group', {'timestamp': ...} or {(topic, partition): offset}"


def check_start(start: Any, group: str | None, topics: Sequence[str]) -> Any:
    """Return `start=` as a JSON-able value.

    Raises:
        UsageError: it is none of the accepted forms.
    """
    if start == "group" and group is None:
        raise UsageError("KafkaSource: start='group' needs the group's name", hint="add group='...'")
    if start in {"earliest", "latest", "group"} if isinstance(start, str) else False:
        return start
    if isinstance(start, Mapping) and set(start) == {"timestamp"}:
        return {"timestamp": _milliseconds(start["timestamp"])}
    if isinstance(start, Mapping) and start:
        return {"offsets": _offsets(start, "start", topics)}
    raise UsageError(f"KafkaSource: start={start!r} is not a position", hint=_HINT)


def check_bounded(bounded: Any, topics: Sequence[str]) -> Any:
    """Return `bounded=` as a JSON-able value; None = unbounded.

    Raises:
        UsageError: it is none of the accepted forms.
    """
    if bounded is False or bounded is None:
        return None
    if bounded is True or bounded == "latest":
        return "latest"
    if isinstance(bounded, Mapping) and set(bounded) == {"timestamp"}:
        return {"timestamp": _milliseconds(bounded["timestamp"])}
    if isinstance(bounded, Mapping) and bounded:
        return {"offsets": _offsets(bounded, "bounded", topics)}
    raise UsageError(
        f"KafkaSource: bounded={bounded!r} is not an end",
        hint="use False, 'latest', {'timestamp': ...} or {(topic, partition): offset}",
    )


def _milliseconds(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _plausible(value)
    try:
        moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return int(moment.timestamp() * 1000)
    except (AttributeError, ValueError, TypeError) as error:
        raise UsageError(
            f"KafkaSource: {value!r} is not a time", hint="milliseconds since the epoch, an ISO text or a datetime"
        ) from error


def _plausible(milliseconds: int) -> int:
    """Return a time as given.

    Raises:
        UsageError: seconds or microseconds of a present time would have that magnitude.
    """
    where = f"KafkaSource: the time {milliseconds}"
    if milliseconds < 0:
        raise UsageError(f"{where} is before 1970", hint="milliseconds since the epoch, an ISO text or a datetime")
    if _SECONDS <= milliseconds < 100 * _SECONDS:
        day = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).date()
        raise UsageError(f"{where} is {day} in milliseconds", hint=f"seconds? write {milliseconds} * 1000")
    if milliseconds >= _MICROSECONDS:
        year = 1970 + milliseconds // (365 * 86_400_000)
        msg = f"{where} is the year {year} in milliseconds"
        raise UsageError(msg, hint=f"microseconds? write {milliseconds} // 1000")
    return milliseconds


def _offsets(given: Mapping[Any, Any], what: str, topics: Sequence[str]) -> list[list[Any]]:
    out = []
    for place, offset in given.items():
        ok = isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str)
        if not ok or not all(isinstance(number, int) and number >= 0 for number in (place[1], offset)):
            example = f"{{({topics[0]!r}, 0): 1234}}"
            raise UsageError(f"KafkaSource: {what} has {place!r}: {offset!r}", hint=f"write {example}")
        if place[0] not in topics:
            msg = f"KafkaSource: {what} names the topic {place[0]!r}, which is not read"
            raise UsageError(msg, hint=did_you_mean(place[0], topics))
        out.append([*place, offset])
    return sorted(out)


def start_offsets(
    start: Any, places: list[PartitionId], cluster: ClusterMetadata, group: str | None
) -> dict[PartitionId, int]:
    """Return the first offset to read of every partition.

    Partitions without an offset of the group, or that `start` does not name, begin at the earliest; a time after the
    last record means the end.
    """
    if start == "earliest":
        return cluster.offsets(places, "earliest")
    if start == "latest":
        return cluster.offsets(places, "latest")
    if start == "group":
        known = cluster.group_offsets(group or "", places)
    elif "timestamp" in start:
        known = {
            place: offset for place, offset in cluster.offsets(places, int(start["timestamp"])).items() if offset >= 0
        }
        return known | cluster.offsets([place for place in places if place not in known], "latest")
    else:
        known = _named(start, places)
    return known | cluster.offsets([place for place in places if place not in known], "earliest")


def stop_offsets(bounded: Any, places: list[PartitionId], cluster: ClusterMetadata) -> Mapping[PartitionId, int]:
    """Return the offset before which reading ends, none for unbounded; partitions not in `bounded` end at once."""
    if bounded is None:
        return {}
    if bounded == "latest":
        return cluster.offsets(places, "latest")
    if "timestamp" in bounded:
        found = cluster.offsets(places, int(bounded["timestamp"]))
        ends = {place: offset for place, offset in found.items() if offset >= 0}
        return ends | cluster.offsets([place for place in places if place not in ends], "latest")
    return dict.fromkeys(places, 0) | _named(bounded, places)


def require_range(start: Any, bounded: Any) -> None:
    """Refuse an end before the start.

    Raises:
        UsageError: a partition has one.
    """
    if not isinstance(start, dict) or not isinstance(bounded, dict):
        return
    first = {(topic, partition): offset for topic, partition, offset in start.get("offsets", ())}
    for topic, partition, end in bounded.get("offsets", ()):
        begin = first.get((topic, partition), 0)
        if end < begin:
            place = f"partition {partition} of topic {topic!r}"
            msg = f"KafkaSource: bounded ends {place} at {end}, before its start, {begin}"
            raise UsageError(msg, hint="the end has to be after the start")


def require_positions(
    config: Mapping[str, Any], partitions: Mapping[str, Sequence[int]], cluster: ClusterMetadata
) -> None:
    """Refuse offsets of partitions that do not exist, or a start beyond a partition's end; `partitions` by topic.

    Raises:
        ConnectorError: there is one.
    """
    places = [(topic, partition) for topic, numbers in partitions.items() for partition in numbers]
    for name in ("start", "bounded"):
        value = config[name]
        if not isinstance(value, dict) or "offsets" not in value:
            continue
        try:
            named = _named(value, places)
        except ConnectorError as error:
            raise ConnectorError(f"KafkaSource: {name}=: {error.message}", hint=error.hint) from error
        ends = cluster.offsets(list(named), "latest", committed=False) if name == "start" else {}
        for (topic, partition), end in ends.items():
            if (offset := named[topic, partition]) > end:
                msg = f"KafkaSource: start=: offset {offset} of partition {partition} of topic {topic!r}"
                raise ConnectorError(f"{msg} is beyond its end, {end}", hint="start='latest' reads what is new")


def _named(value: Any, places: list[PartitionId]) -> dict[PartitionId, int]:
    named = {(topic, partition): offset for topic, partition, offset in value["offsets"]}
    for topic, partition in named:
        if (topic, partition) not in places:
            msg = f"offsets are given for partition {partition} of topic {topic!r}, which does not exist"
            known = ", ".join(str(number) for name, number in places if name == topic)
            raise ConnectorError(msg, hint=f"its partitions are {known}" if known else "correct the topic")
    return named
