"""Lists a source's partitions as splits with their first and last offsets.

Runs in the JobManager and imports no Arrow. Positions are determined once, when the job first starts. Partitions
that appear later are read from their beginning, so that no record is skipped.
"""

from __future__ import annotations

from typing import Any

from penstock.connector.source import SourceSplit
from penstock_connectors.kafka.client.metadata import ClusterMetadata
from penstock_connectors.kafka.client.positions import start_offsets, stop_offsets
from penstock_connectors.kafka.client.properties import LOOKUP_TIMEOUT_MS, PartitionId, resolve


def split_id(topic: str, partition: int) -> str:
    """Return the identity of a partition as a split."""
    return f"{topic}-{partition}"


class KafkaEnumerator:
    """A `SplitEnumerator` over the partitions of the configured topics."""

    def __init__(self, config: dict[str, Any], *, first_run: bool, timeout_ms: int = LOOKUP_TIMEOUT_MS) -> None:
        """Prepare; nothing is requested before `discover`."""
        self._config, self._timeout_ms = config, timeout_ms
        self._at_start = first_run
        self._cluster: ClusterMetadata | None = None

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return partitions not in `known`.

        Raises:
            ConnectorError: the broker cannot be reached or a topic does not exist.
        """
        cluster = self._cluster  # `close` may be called meanwhile
        if cluster is None:
            resolved = resolve(self._config["bootstrap"], self._config["properties"])
            cluster = self._cluster = ClusterMetadata(resolved, self._timeout_ms)
        found = cluster.partitions(self._config["topics"])
        places: list[PartitionId] = [
            (topic, partition)
            for topic, partitions in found.items()
            for partition in partitions
            if split_id(topic, partition) not in known
        ]
        bounded = self._config["bounded"]
        if self._at_start or (bounded is not None and not known):
            # ends before starts: records written in between are then after the end, never skipped
            stops = stop_offsets(bounded, places, cluster)
            starts = start_offsets(self._config["start"], places, cluster, self._config["group"])
        elif bounded is not None:
            return ()  # a bounded input is the records that existed when the job first started
        else:
            stops = {}
            starts = cluster.offsets(places, "earliest")
        self._at_start = False
        return tuple(_split(place, starts[place], stops.get(place)) for place in places)

    def close(self) -> None:
        """Drop the connection."""
        self._cluster = None


def _split(place: PartitionId, start: int, stop: int | None) -> SourceSplit:
    topic, partition = place
    state = {"topic": topic, "partition": partition, "offset": start, "stop": stop}
    return SourceSplit(id=split_id(topic, partition), state=state, finished=stop is not None and start >= stop)
