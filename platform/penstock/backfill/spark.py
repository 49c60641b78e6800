"""The stages of a backfill on Spark.

Called by `penstock backfill --master`.

A stage is `mapInArrow` over parts of history, or over the rows of the stages before, repartitioned by key range and
sorted within each partition. The output of a stage is kept on the executors' disks until the end. After the loss of an
executor Spark computes its part again, under other file names; the lost files are never named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from penstock.backfill.engine import feeds
from penstock.backfill.stages import (
    COMBINED,
    EDGE,
    NO_EDGE,
    ORDER,
    PART,
    RESULT,
    TIME,
    Stage,
    TaskResult,
    column_of,
    input_schema,
    output_schema,
)
from penstock.backfill.task import run_parts, run_source
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import PenstockError
from penstock.snapshots.on_spark.spark_session import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.backfill.engine import Progress

_Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_BATCH_ROWS = 32_768
#: Column by which the rows of a part are shuffled together.
_SLOT = "__slot"
#: Candidates per partition when searching a number that Spark hashes to that partition.
_TRIED_A_PARTITION = 64


class BackfillFailedError(PenstockError):
    """A task of Spark failed more often than Spark retries."""


class SparkEngine:
    """Runs stages as jobs of one Spark session."""

    def __init__(self, session: SparkSession) -> None:
        """Use `session`, which stays the caller's."""
        self._session = session
        self._given: dict[str, DataFrame] = {}
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BATCH_ROWS))

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage; see `engine.Engine`.

        Raises:
            BackfillFailedError: with the error of the task's last attempt.
        """
        schema = from_arrow_schema(output_schema(stage))
        rows = self._pieces(stage) if stage.vertex.is_source else self._parts(stage)
        given = _map_in_arrow(rows, _task_of(msgspec.msgpack.encode(stage)), schema).persist(StorageLevel.DISK_ONLY)
        self._given[stage.vertex.id] = given
        progress(stage, 0, stage.parts)
        try:
            found = given.where(F.col(EDGE) == NO_EDGE).select(RESULT).collect()
        except (PySparkException, Py4JError) as error:
            msg = f"stage {stage.vertex.name!r} failed on Spark: {reason_of(error)}"
            raise BackfillFailedError(msg, hint="no savepoint was written") from error
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
        schema = input_schema(stage)
        names = {field.name: field.dataType for field in from_arrow_schema(schema)}
        rows = self._session.range(0, stage.parts, 1, 1).select(
            *(_of_part_marker(name).cast(kind).alias(name) for name, kind in names.items())
        )
        for number, (vertex_id, index) in enumerate(feeds(stage)):
            for more in (0, COMBINED) if any(stage.combined_inputs[number : number + 1]) else (0,):
                given = self._given[vertex_id].where(F.col(EDGE) == index + more)
                own = {column_of("i", number + more): F.col(column_of("e", index + more)), EDGE: F.lit(number + more)}
                columns = [
                    own.get(name, F.col(name) if name in ORDER else F.lit(None)).cast(kind).alias(name)
                    for name, kind in names.items()
                ]
                rows = rows.unionByName(given.select(*columns))
        slots = F.array(*(F.lit(slot) for slot in self._slots(stage.parts)))
        placed = rows.withColumn(_SLOT, F.element_at(slots, F.col(PART) + 1))
        return placed.repartition(stage.parts, _SLOT).drop(_SLOT).sortWithinPartitions(*ORDER)

    def _slots(self, parts: int) -> list[int]:
        """Return for each part a number that Spark's hash puts into a separate partition."""
        return _slots_of(self._session, parts)


@functools.lru_cache(maxsize=16)
def _slots_of(session: SparkSession, parts: int) -> list[int]:
    candidates = session.range(0, parts * _TRIED_A_PARTITION).select(F.col("id").cast("int").alias(_SLOT))
    hashed = candidates.select(_SLOT, F.pmod(F.hash(_SLOT), F.lit(parts)).alias(PART))
    found = {row[PART]: row["slot"] for row in hashed.groupBy(PART).agg(F.min(_SLOT).alias("slot")).collect()}
    return [found.get(part, part) for part in range(parts)]


def _of_part_marker(name: str) -> Any:
    """Return a column of `stages.part_markers`."""
    known = {PART: F.col("id"), TIME: F.lit(MIN_TIMESTAMP), EDGE: F.lit(NO_EDGE)}
    return known.get(name, F.lit(0) if name in ORDER else F.lit(None))


def _map_in_arrow(rows: DataFrame, task: _Task, schema: StructType) -> DataFrame:
    """Do the work of `DataFrame.mapInArrow`, which requires Pandas without using it."""
    function = UserDefinedFunction(task, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = function(*(rows[name] for name in rows.columns))
    plan: Any = rows._jdf.mapInArrow(column._jc, False, None)  # noqa: SLF001 - Spark's own way to it
    return DataFrame(plan, rows.sparkSession)


def _task_of(encoded: bytes) -> _Task:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = msgspec.msgpack.decode(encoded, type=Stage)
        if not stage.vertex.is_source:
            yield from run_parts(stage, batches)
            return
        for batch in batches:
            for number in batch.column(0).to_numpy():
                yield from run_source(stage, int(np.int64(number)))

    return run
