"""Writing ranges of states whose keys stay, as tasks of Spark.

Called by `penstock state repartition` and `rekey`.

A task opens both stores by their addresses, writes the files of one range and returns their entries for the manifest. A
repeated or duplicate task writes the same bytes to the same names. The driver writes the manifest last, with one result
of each task.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.checkpoint.stores import open_store
from penstock.core.errors import StorageError
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.snapshots.on_spark.spark_session import reason_of
from penstock.snapshots.rewrite.recut import Cut, Run

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

    from penstock.checkpoint.store import ObjectStore

T = TypeVar("T")


def on_spark(session: SparkSession) -> Run:
    """Return a function that runs each range as a task of the session.

    Executors need penstock and store credentials.
    """

    def run(cuts: Sequence[Cut], source: ObjectStore, target: ObjectStore) -> list[KeyedStateSnapshot]:
        if not cuts:
            return []
        encoded = [msgspec.msgpack.encode(cut) for cut in cuts]
        tasks = session.sparkContext.parallelize(encoded, len(encoded))
        written = gathered(tasks.map(functools.partial(_write, source.uri, target.uri)))
        return [msgspec.msgpack.decode(state, type=KeyedStateSnapshot) for state in written]

    return run


def gathered(tasks: RDD[T]) -> list[T]:
    """Run the tasks and return their results.

    Raises:
        StorageError: a task failed more often than Spark retries; with its error.
    """
    try:
        return tasks.collect()
    except (PySparkException, Py4JError) as error:
        raise StorageError(f"a Spark task failed: {reason_of(error)}", hint="no savepoint was written") from error


def _write(source_uri: str, target_uri: str, encoded: bytes) -> bytes:
    cut = msgspec.msgpack.decode(encoded, type=Cut)
    return msgspec.msgpack.encode(cut.write(open_store(source_uri), open_store(target_uri)))
