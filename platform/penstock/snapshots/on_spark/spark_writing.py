"""State from Spark: the implementation of `df.write.format("penstock")`; `on_spark.spark_entry` passes the options.

The driver makes the plan, tasks write files under names unique to each attempt, and Spark's commit writes the manifest
once. It names the files of one attempt of each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.api.job_file import planned
from penstock.core.errors import UsageError
from penstock.core.rand import SystemRand
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.graph.job_graph import read_submitted
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.rewrite.parts import (
    WritePlan,
    abort_write,
    finish,
    new_target,
    plan_write,
    replaced_target,
    write_part,
)
from penstock.snapshots.rewrite.writing import state_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.graph.job_graph import JobGraph

OPTIONS = ("path", "uid", "name", "job", "from")
_FORMAT = 'format("penstock")'
_TOKEN_DIGITS = 12


@dataclass
class Written(WriterCommitMessage):
    """The result of one attempt of a task: an encoded part for each subtask."""

    parts: tuple[bytes, ...]


class StateWriter(DataSourceArrowWriter):
    """Writes one state of a savepoint."""

    def __init__(self, plan: WritePlan) -> None:
        """Write according to `plan`."""
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task.

        Raises:
            UsageError: a row does not fit the state.
            StorageError: the target cannot be written.
        """
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls it in a task
        task = f"{context.partitionId():05d}-{context.taskAttemptId()}"
        return Written(tuple(map(msgspec.msgpack.encode, write_part(self._plan, iterator, task))))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the savepoint exist; see `parts.finish`."""
        told = [message.parts for message in messages if isinstance(message, Written)]
        finish(self._plan, [tuple(map(_decoded, parts)) for parts in told])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Restore the folder; files of attempts without a result are removed too."""
        del messages
        abort_write(self._plan)


def state_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StateWriter:
    """Return the writer of rows with the columns `schema`.

    Raises:
        UsageError: an option is missing or unknown, there is no such job or state, a column is missing or unknown, or
        the folder is not free.
        NotFoundError: there is no snapshot to copy the rest from.
    """
    unknown = [name for name in options if name.lower() not in OPTIONS]
    if unknown:
        raise UsageError(f"{_FORMAT} has no option {unknown[0]!r} for writing", hint=f"it has {', '.join(OPTIONS[1:])}")
    for name, what in (("path", "a path"), ("uid", 'the option "uid"'), ("job", 'the option "job"')):
        if not options.get(name):
            hint = (
                'df.write.format("penstock").option("job", "job.py").option("uid", "totals").mode("append").save(uri)'
            )
            raise UsageError(f"{_FORMAT} needs {what} to write", hint=hint)
    graph = with_states(_job(Path(options["job"])))
    rows = state_rows(graph, options["uid"], options.get("name"), _FORMAT)
    rows.typed(to_arrow_schema(schema).empty_table())
    place = replaced_target if overwrite else new_target
    target = place(options["path"], SystemRand().token(_TOKEN_DIGITS))
    return StateWriter(plan_write(graph, rows, target, options.get("from") or ""))


def _job(path: Path) -> JobGraph:
    if path.suffix == ".py":
        return planned(path, {}, "")
    try:
        return read_submitted(path.read_bytes())
    except OSError as error:
        msg = f"{_FORMAT}: the job {path} cannot be read: {error.strerror}"
        raise UsageError(msg, hint="pass a job file, or the output of `penstock run JOB.PY --write`") from error


def _decoded(part: bytes) -> KeyedStateSnapshot:
    return msgspec.msgpack.decode(part, type=KeyedStateSnapshot)
