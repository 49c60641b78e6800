"""The stages of a backfill on Spark.

Called by `penstock backfill --master`.

A stage is `mapInArrow` over parts of history, or over the packets of the stages before, repartitioned by part and
sorted within each partition: Spark moves and sorts packets of some thousand rows, never a row. The output of a stage is
kept on the executors' disks until the end. After the loss of an executor Spark computes its part again, under other
file names; the lost files are never named.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from penstock.backfill.exchange import COMBINED, NO_EDGE, Packet
from penstock.backfill.stages import Stage, TaskResult, feeds
from penstock.backfill.task import run_parts, run_source
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import PenstockError, cause_of
from penstock.snapshots.on_spark.spark_session import described, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.backfill.engine import Progress

_Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
#: Packets that Spark gives a task at a time.
_BATCH_PACKETS = 16
#: The columns of a packet, in the order of `Packet`.
_ARROW_SCHEMA = pa.schema(
    {
        "part": pa.int32(), "first": pa.int64(), "edge": pa.int32(),
        "origin": pa.int64(), "number": pa.int64(), "data": pa.binary(),
    }
)  # fmt: skip
_SCHEMA = from_arrow_schema(_ARROW_SCHEMA)
#: The columns of `Packet.place`.
_PLACE = _SCHEMA.names[:-1]
#: Column by which the packets of a part are shuffled together.
_SLOT = "__slot"
#: Spark sorts and moves a packet for thousands of rows, so that compiling its plans costs more than it gains.
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BATCH_PACKETS),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


class BackfillFailedError(PenstockError):
    """A task of Spark failed more often than Spark retries."""


class SparkEngine:
    """Runs stages as jobs of one Spark session."""

    def __init__(self, session: SparkSession) -> None:
        """Open another session in the context of `session`, so that its settings do not change."""
        self._session = session.newSession()
        self._given: dict[str, DataFrame] = {}
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage; see `engine.Engine`.

        Raises:
            BackfillFailedError: with the error of the task's last attempt.
        """
        rows = self._pieces(stage) if stage.vertex.is_source else self._parts(stage)
        given = _map_in_arrow(rows, task_of(msgspec.msgpack.encode(stage)), _SCHEMA)
        if stage.outputs:
            self._given[stage.vertex.id] = given.persist(StorageLevel.DISK_ONLY)
        progress(stage, 0, stage.parts)
        try:
            with described(self._session, f"backfill of {stage.job_name}: {stage.vertex.name}"):
                found = given.where(F.col("edge") == NO_EDGE).select("data").collect()
        except (PySparkException, Py4JError) as error:
            msg = f"stage {stage.vertex.name!r} failed on Spark: {reason_of(error)}"
            failed = BackfillFailedError(msg, hint="no savepoint was written", cause=cause_of(reason_of(error)))
            if own := own_lines(str(error)):
                failed.add_note(own)
            raise failed from error
        progress(stage, stage.parts, stage.parts)
        results = [msgspec.msgpack.decode(bytes(row[0]), type=TaskResult) for row in found]
        return sorted(results, key=lambda result: result.part)

    def close(self) -> None:
        """Drop the output of stages."""
        for given in self._given.values():
            given.unpersist()
        self._given.clear()

    def _pieces(self, stage: Stage) -> DataFrame:
        # a source may have no split, but Spark needs at least one partition
        return self._session.range(0, stage.parts, 1, max(1, stage.parts))

    def _parts(self, stage: Stage) -> DataFrame:
        # a packet without rows for each part, so that parts without input run too
        marker = {"part": F.col("id"), "first": F.lit(MIN_TIMESTAMP), "edge": F.lit(NO_EDGE), "data": F.lit("")}
        columns = [marker.get(f.name, F.lit(0)).cast(f.dataType).alias(f.name) for f in _SCHEMA]
        packets = self._session.range(0, stage.parts, 1, 1).select(*columns)
        for number, (vertex_id, index) in enumerate(feeds(stage)):
            given = self._given[vertex_id].where(F.col("edge").isin(index, COMBINED + index))
            packets = packets.union(given.withColumn("edge", F.col("edge") + F.lit(number - index)))
        slots = F.array(*(F.lit(slot) for slot in slots_of(stage.parts)))
        placed = packets.withColumn(_SLOT, F.element_at(slots, F.col("part") + 1))
        return placed.repartition(stage.parts, _SLOT).drop(_SLOT).sortWithinPartitions(*_PLACE)


#: The note of `task.BackfillTaskError` in Spark's text, which continues with the frames of the JVM.
_NOTE = re.compile(r"^In your code:$.*?(?=^\s*$|^\s*at \S+\(|\Z)", re.DOTALL | re.MULTILINE)


def own_lines(text: str) -> str:
    """Return the lines of the user's code and the row from the text of Spark's error; empty if there are none."""
    found = _NOTE.search(text)
    return found[0].rstrip() if found else ""


@functools.cache
def slots_of(parts: int) -> tuple[int, ...]:
    """Return for each part a number that Spark's `repartition` puts into a separate partition."""
    found: dict[int, int] = {}
    for slot in itertools.count():
        found.setdefault(spark_hash(slot) % parts, slot)
        if len(found) == parts:
            return tuple(found[part] for part in range(parts))
    raise AssertionError


def spark_hash(value: int) -> int:
    """Return Spark's `hash` of a non-negative 32-bit integer: Murmur3 with seed 42."""
    mask = 0xFFFFFFFF
    mixed = value * 0xCC9E2D51 & mask
    mixed = ((mixed << 15 | mixed >> 17) & mask) * 0x1B873593 & mask
    found = 42 ^ mixed
    found = ((found << 13 | found >> 19) & mask) * 5 + 0xE6546B64 & mask
    found ^= 4
    found = (found ^ found >> 16) * 0x85EBCA6B & mask
    found = (found ^ found >> 13) * 0xC2B2AE35 & mask
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def _map_in_arrow(rows: DataFrame, task: _Task, schema: StructType) -> DataFrame:
    """Do the work of `DataFrame.mapInArrow`, which requires Pandas without using it."""
    function = UserDefinedFunction(task, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = function(*(rows[name] for name in rows.columns))
    plan: Any = rows._jdf.mapInArrow(column._jc, False, None)  # noqa: SLF001 - Spark's own way to it
    return DataFrame(plan, rows.sparkSession)


def task_of(encoded: bytes) -> _Task:
    """Return what an executor does for one task of a stage: from numbers of parts or packets to packets."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = msgspec.msgpack.decode(encoded, type=Stage)
        packets: Iterator[Packet]
        if stage.vertex.is_source:
            numbers = (int(number) for batch in batches for number in batch.column(0).to_pylist())
            packets = (packet for number in numbers for packet in run_source(stage, number))
        else:
            packets = run_parts(stage, packets_of(batches))
        while batch := batch_of(list(itertools.islice(packets, _BATCH_PACKETS))):
            yield batch

    return run


def packets_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Packet]:
    """Yield the packets of batches of Spark."""
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Packet(*row)


def batch_of(packets: Sequence[Packet]) -> pa.RecordBatch | None:
    """Return packets as a batch of Spark; None if there are none."""
    columns = zip(*((*packet.place, packet.data) for packet in packets), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _ARROW_SCHEMA, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA) if packets else None
