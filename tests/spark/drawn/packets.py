"""An engine that does in this process what Spark does with packets: tasks in any order, some of them twice.

It runs the functions that Spark's executors run; only the shuffle and the sort are its own.
"""

from collections import defaultdict
from dataclasses import replace
from operator import attrgetter

import msgspec
import pyarrow as pa

from penstock.backfill.exchange import COMBINED, NO_EDGE, Packet
from penstock.backfill.spark import batch_of, packets_of, task_of
from penstock.backfill.stages import TaskResult, feeds
from penstock.core.elements import MIN_TIMESTAMP


class PacketsEngine:
    """Runs the tasks of a stage in a drawn order, each with the packets of one part."""

    def __init__(self, rand, repeated=0.1):
        """Run a task again with probability `repeated`, as after the loss of an executor; the first result is lost."""
        self._rand, self._repeated = rand, repeated
        self._given = defaultdict(list)

    def run(self, stage, progress):
        """Run all tasks of a stage; see `engine.Engine`."""
        task = task_of(msgspec.msgpack.encode(stage))
        inputs = [[pa.record_batch({"id": [n]})] for n in range(stage.parts)] if stage.vertex.is_source else None
        inputs = inputs if inputs is not None else self._parts(stage)
        results = []
        for number in self._rand.sample(range(stage.parts), stage.parts):
            if self._rand.random() < self._repeated:
                for _ in task(iter(inputs[number])):
                    pass
            for packet in packets_of(task(iter(inputs[number]))):
                if packet.edge == NO_EDGE:
                    results.append(msgspec.msgpack.decode(packet.data, type=TaskResult))
                else:
                    self._given[stage.vertex.id].append(packet)
        progress(stage, stage.parts, stage.parts)
        return sorted(results, key=attrgetter("part"))

    def close(self):
        """Drop all rows."""
        self._given.clear()

    def _parts(self, stage):
        found = [[Packet(part, MIN_TIMESTAMP, NO_EDGE, 0, 0, b"")] for part in range(stage.parts)]
        for number, (vertex_id, index) in enumerate(feeds(stage)):
            own = [packet for packet in self._given[vertex_id] if packet.edge in (index, COMBINED + index)]
            for packet in self._rand.sample(own, len(own)):
                found[packet.part].append(replace(packet, edge=packet.edge + number - index))
        return [[batch_of(sorted(packets, key=attrgetter("place")))] for packets in found]
