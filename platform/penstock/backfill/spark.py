"""The stages of a backfill on Spark.

Called by `penstock backfill --master`.

A stage is an RDD: Python tasks over parts of history, or over the packets of the stages before, partitioned by part.
Spark moves packets of some thousand rows, never a row. Its SQL, with plans and compiled code, is not needed for them.
The output of a stage is kept on the executors' disks until the end. After the loss of an executor Spark computes its
part again, under other file names; the lost files are never named.
"""

from __future__ import annotations

import bisect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException

from penstock.backfill.exchange import COMBINED, NO_EDGE, Packet, marker
from penstock.backfill.packet_order import in_order
from penstock.backfill.stages import Stage, TaskResult, feeds
from penstock.backfill.task import run_parts, run_source
from penstock.core.errors import PenstockError, cause_of
from penstock.snapshots.on_spark.spark_context import described, reason_of

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from penstock.backfill.engine import Progress

_Place = tuple[int, int, int, int, int]
#: `Packet.place` and `Packet.data`.
Pair = tuple[_Place, bytes]
#: What an executor does for one task, from the number of its partition and its input.
_Task = Callable[[int, Iterable[Any]], Iterator[Pair]]


class BackfillFailedError(PenstockError):
    """A task of Spark failed more often than Spark retries."""


class SparkEngine:
    """Runs stages as jobs of one Spark context."""

    def __init__(self, context: SparkContext) -> None:
        """Run jobs in a context, whose owner stops it."""
        self._context = context
        #: Vertex -> the packets of its tasks.
        self._given: dict[str, RDD[Pair]] = {}

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage; see `engine.Engine`.

        Raises:
            BackfillFailedError: with the error of the task's last attempt.
        """
        inputs = self._pieces(stage) if stage.vertex.is_source else self._parts(stage)
        given = inputs.mapPartitionsWithIndex(task_of(msgspec.msgpack.encode(stage)))
        if stage.outputs:
            self._given[stage.vertex.id] = given.persist(StorageLevel.DISK_ONLY)
        progress(stage, 0, stage.parts)
        try:
            with described(self._context, f"backfill of {stage.job_name}: {stage.vertex.name}"):
                found = given.mapPartitions(results_of).collect()
        except (PySparkException, Py4JError) as error:
            msg = f"stage {stage.vertex.name!r} failed on Spark: {reason_of(error)}"
            failed = BackfillFailedError(msg, hint="no savepoint was written", cause=cause_of(reason_of(error)))
            if own := own_lines(str(error)):
                failed.add_note(own)
            raise failed from error
        progress(stage, stage.parts, stage.parts)
        results = [msgspec.msgpack.decode(data, type=TaskResult) for data in found]
        return sorted(results, key=lambda result: result.part)

    def close(self) -> None:
        """Drop the output of stages."""
        for given in self._given.values():
            given.unpersist()
        self._given.clear()

    def _pieces(self, stage: Stage) -> RDD[int]:
        # a source may have no split, but Spark needs at least one partition
        return self._context.parallelize(range(stage.parts), max(1, stage.parts))

    def _parts(self, stage: Stage) -> RDD[Pair]:
        sources = feeds(stage)
        given = [self._given[vertex_id] for vertex_id, _ in sources]
        packets = given[0] if len(given) == 1 else self._context.union(given)
        ends = list(itertools.accumulate(one.getNumPartitions() for one in given))
        chosen = packets.mapPartitionsWithIndex(chooser([index for _, index in sources], ends))
        return chosen.partitionBy(stage.parts, part_of)


#: The note of `task.BackfillTaskError` in Spark's text, which continues with the frames of the JVM.
_NOTE = re.compile(r"^In your code:$.*?(?=^\s*$|^\s*at \S+\(|\Z)", re.DOTALL | re.MULTILINE)


def own_lines(text: str) -> str:
    """Return the lines of the user's code and the row from the text of Spark's error; empty if there are none."""
    found = _NOTE.search(text)
    return found[0].rstrip() if found else ""


def chooser(indexes: Sequence[int], ends: Sequence[int]) -> _Task:
    """Return what chooses the packets for a stage, and gives their edges the numbers of its inputs.

    Each input has an edge of the vertex that feeds it, by index, in the partitions before its end.
    """

    def choose(partition: int, pairs: Iterable[Pair]) -> Iterator[Pair]:
        number = bisect.bisect_right(ends, partition)
        index = indexes[number]
        for (part, first, edge, origin, count), data in pairs:
            if edge in (index, COMBINED + index):
                yield (part, first, edge + number - index, origin, count), data

    return choose


def part_of(place: _Place) -> int:
    """Return the part of a packet, which is the number of its partition."""
    return place[0]


def results_of(pairs: Iterable[Pair]) -> Iterator[bytes]:
    """Yield the results of tasks."""
    return (data for (_, _, edge, _, _), data in pairs if edge == NO_EDGE)


def task_of(encoded: bytes) -> _Task:
    """Return what an executor does for one task of a stage; its input is numbers of parts of history, or packets."""

    def run(partition: int, inputs: Iterable[Any]) -> Iterator[Pair]:
        stage = msgspec.msgpack.decode(encoded, type=Stage)
        packets: Iterator[Packet]
        if stage.vertex.is_source:
            packets = (packet for number in inputs for packet in run_source(stage, number))
        else:
            own = in_order(map(_packet_of, inputs), folder=_local_folder())
            packets = run_parts(stage, itertools.chain([marker(partition)], own))
        return ((packet.place, packet.data) for packet in packets)

    return run


def _packet_of(pair: Pair) -> Packet:
    place, data = pair
    return Packet(*place, data)


def _local_folder() -> str | None:
    """Return the first of the folders that Spark's executor names to its Python workers."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None
