"""The cuts of a repartition as tasks of Spark. Called by `penstock state repartition --master`.

A task opens both stores by their addresses, writes the files of one cut and gives back what the manifest has to say of
them. One that is run again, or twice at once, writes the same bytes to the same names, and the manifest, which the
driver writes last, names what was written once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.checkpoint.stores import open_store
from penstock.core.errors import StorageError, UsageError
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.snapshots.repartition import Cut, Run

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore

#: Settings of a session of our own: only what it cannot do without; the rest is in the user's Spark configuration.
_OWN_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@contextlib.contextmanager
def open_session(master: str) -> Iterator[SparkSession]:
    """Start a session, e.g. on `local[4]`, `spark://host:7077` or `yarn`, and stop it at the end.

    Raises:
        UsageError: Spark does not start with that master.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("penstock")
    for name, value in {**_OWN_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {})}.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as folder:
        try:
            with contextlib.chdir(folder):  # the JVM leaves a folder of artifacts where it is started
                session = builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            lines = str(error).strip().splitlines()
            msg = f"Spark does not start with --master {master}: {lines[0]}"
            raise UsageError(msg, hint="e.g. local[2]") from error
        try:
            yield session
        finally:
            session.stop()


def on_spark(session: SparkSession) -> Run:
    """Return what runs each cut as a task of the session; executors need penstock and the stores' credentials."""

    def run(cuts: Sequence[Cut], source: ObjectStore, target: ObjectStore) -> list[KeyedStateSnapshot]:
        if not cuts:
            return []
        task = _task_of([msgspec.msgpack.encode(cut) for cut in cuts], source.uri, target.uri)
        try:
            written = session.sparkContext.parallelize(range(len(cuts)), len(cuts)).map(task).collect()
        except (PySparkException, Py4JError) as error:
            said = [line for line in str(error).splitlines() if line.startswith("penstock.")]
            raise StorageError(f"a task of Spark failed: {said[-1] if said else error}") from error
        return [msgspec.msgpack.decode(state, type=KeyedStateSnapshot) for state in written]

    return run


def _task_of(cuts: list[bytes], source_uri: str, target_uri: str) -> Callable[[int], bytes]:
    def write(number: int) -> bytes:
        cut = msgspec.msgpack.decode(cuts[number], type=Cut)
        return msgspec.msgpack.encode(cut.write(open_store(source_uri), open_store(target_uri)))

    return write
