"""State in Spark: `spark.read.format("penstock")`, a Python data source over the files of a snapshot.

Spark discovers it by the package `pyspark_penstock`. The driver opens the snapshot once, when the frame is made. A task
reads the rows of a hash range (`spark_parts`), and only the row groups and columns that it needs. With `since` the rows
are changes; `readStream` reads those of one completed checkpoint after the other. `df.write` is implemented by
`spark_writing`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.core.errors import NotFoundError, UsageError, did_you_mean
from penstock.core.keygroup import ALL_HASHES, HashRange, first_hash_of
from penstock.kernels.keys.key_text import parse_key
from penstock.snapshots.access.content import find_state
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.pruning import parsed_filter
from penstock.snapshots.on_spark.spark_parts import StatePart, StatePlan, with_changes
from penstock.snapshots.rewrite.key_expressions import is_by_row

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KNOWN = (
    "path",
    "uid",
    "name",
    "checkpoint",
    "since",
    "columns",
    "where",
    "withhash",
    "keygroups",
    "keys",
    "partitionbytes",
)
#: Default for the bytes of files that one task reads.
_PARTITION_BYTES = 128 << 20
_EXAMPLE = 'spark.read.format("penstock").option("uid", "totals").load("s3://bucket/savepoint")'
_KEYS_HINT = "[7, 8]; of several columns [[7, null]] or [{...}]"


class PenstockDataSource(DataSource):
    """One state of one operator, its live rows only, with the columns of `ps.snapshots.read`.

    The path is a savepoint's folder or a job's folder of checkpoints (its newest is used when the frame is made).
    Options: `uid` and `name` of the state (the name is optional if the operator has only one), `checkpoint` (a
    sequence), `since` (a sequence: the rows that changed after it, with `__change` and `__checkpoint`; 0: all),
    `columns` (names: only these are decoded, unless `where` names them), `where` (a condition in Polars' SQL, met by
    every row), `withHash` (`true`: with `__key_hash`), `keyGroups` (`A-B`: only these, both included), `keys` (JSON:
    only these keys), `partitionBytes` (bytes of files a task reads, 128 MiB). A schema given by the user chooses the
    columns too. `df.select` and `df.where` apply after reading. For writing see `writer`. Executors open the store as
    the driver does: give them the same `PENSTOCK_S3_...` variables (`spark.executorEnv`).
    """

    _found: StatePlan | None = None

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """Return the state's columns as Spark's types.

        Raises:
            UsageError: an option is missing, unknown or malformed, or a column has no type in Spark.
            NotFoundError: there is no such snapshot or state.
        """
        schema = self._chosen()
        try:
            return from_arrow_schema(schema)
        except PySparkException as error:
            msg = f"{self._option('uid')!r} has a column that Spark has no type for: {error}"
            raise UsageError(msg, hint="read it with ps.snapshots.read, or give a schema without it") from error

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns `schema`: all, or those that the user names.

        Raises:
            UsageError: as `schema`, or it has a column that the state does not have.
        """
        wanted = self._checked(schema)
        return StateReader(self.cut(self._plan()), wanted, self._since())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of the changes from each completed checkpoint to the next.

        Raises:
            UsageError: as `schema`; the option `since` is missing, or the path is not a job's folder.
        """
        wanted, since = self._checked(schema), self._since()
        if since is None or self._option("checkpoint"):
            hint = "0: first all rows of the newest checkpoint, then its changes; leave checkpoint out"
            raise UsageError('readStream.format("penstock") needs the option "since"', hint=hint)
        if self._plan().snapshot.manifest.kind != "checkpoint":
            raise UsageError(f"{self._option('path')} is a savepoint", hint="pass the job's folder of checkpoints")
        return CheckpointReader(self, wanted, since)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one state of a savepoint at the path; `overwrite` replaces the savepoint there.

        Options: `job` (a job file, or the output of `penstock run JOB.PY --write`), `uid` and `name` of the state, and
        `from` (a snapshot from which all other state, positions and pending output are copied; else they begin empty).
        Without `overwrite` (mode `append`) the path has to be empty.

        Raises:
            UsageError: see `spark_writing.state_writer`.
        """
        from penstock.snapshots.on_spark.spark_writing import state_writer  # not imported where tasks only read

        return state_writer(self.options, schema, overwrite=overwrite)

    def plan(self, checkpoint: int | None) -> StatePlan:
        """Return what the options ask of a checkpoint; None: the newest.

        Raises:
            UsageError: an option is missing, unknown or malformed.
            NotFoundError: there is no such snapshot or state.
        """
        unknown = [name for name in self.options if name.lower() not in _KNOWN]
        if unknown:
            raise UsageError(f'format("penstock") has no option {unknown[0]!r}', hint=f"it has {', '.join(_KNOWN[1:])}")
        path, uid = self._option("path"), self._option("uid")
        if not path or not uid:
            what = "a path" if not path else 'the option "uid"'
            raise UsageError(f'format("penstock") needs {what}', hint=_EXAMPLE)
        snapshot = open_snapshot(path, checkpoint=checkpoint)
        return StatePlan(snapshot, find_state(snapshot.manifest, uid, self._option("name")))

    def cut(self, plan: StatePlan) -> StatePlan:
        """Return the plan with the key groups, keys, condition and sizes of the options; raises UsageError."""
        groups, keys = self._option("keyGroups"), self._option("keys")
        key_groups = plan.snapshot.manifest.key_groups
        asked = ALL_HASHES if groups is None else _hashes_of(groups, key_groups)
        size = _number("partitionBytes", self._option("partitionBytes") or str(_PARTITION_BYTES))
        cut = replace(plan, asked=(asked,), size=size)
        if keys is not None:
            cut = cut.of_keys(_keys_of(keys, plan.keys))
        condition = self._condition()
        return cut if condition is None else cut.where(condition)

    def _plan(self) -> StatePlan:
        """Return the plan of the frame, made once; see `plan`."""
        if self._found is None:
            checkpoint = self._option("checkpoint")
            self._found = self.plan(None if checkpoint is None else _number("checkpoint", checkpoint))
        return self._found

    def _columns(self) -> pa.Schema:
        columns = self._plan().columns(with_hash=self._is_on("withHash"))
        return columns if self._since() is None else with_changes(columns)

    def _chosen(self) -> pa.Schema:
        names = self._option("columns")
        return self._columns() if names is None else self._named([name.strip() for name in names.split(",")])

    def _checked(self, schema: StructType) -> pa.Schema:
        self._named(schema.fieldNames())
        return to_arrow_schema(schema)

    def _named(self, names: Sequence[str]) -> pa.Schema:
        there = self._columns()
        for name in names:
            if name not in there.names:
                msg = f"{self._option('uid')!r} has no column {name!r}"
                raise UsageError(msg, hint=did_you_mean(name, there.names))
        return pa.schema([there.field(name) for name in names])

    def _condition(self) -> pl.Expr | None:
        text = self._option("where")
        if text is None:
            return None
        columns = pl.DataFrame(pl.from_arrow(self._columns().empty_table())).schema
        condition = parsed_filter(text, columns, "where")
        if not is_by_row(condition):
            raise UsageError(f"where {text!r} may read more than one row", hint="use df.where for it")
        return condition

    def _since(self) -> int | None:
        since = self._option("since")
        return None if since is None else _number("since", since)

    def _is_on(self, name: str) -> bool:
        return (self._option(name) or "false").lower() == "true"

    def _option(self, name: str) -> str | None:
        found: str | None = self.options.get(name)
        return found


class StateReader(DataSourceReader):
    """Reads the rows of a plan, or its change rows."""

    def __init__(self, plan: StatePlan, schema: pa.Schema, since: int | None) -> None:
        """Read `plan`, with the columns `schema` that Spark expects of every batch."""
        self._plan = plan
        self._schema = schema
        self._since = since

    def partitions(self) -> list[InputPartition]:
        parts = self._plan.parts() if self._since is None else self._plan.changes_since(self._since)
        return [*parts] or [StatePart("")]  # Spark needs at least one partition

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part as Spark's Arrow batches.

        Raises:
            SnapshotDamagedError: a file is missing or damaged.
        """
        assert isinstance(partition, StatePart)  # noqa: S101 - made above
        return partition.batches(self._schema)


class CheckpointReader(DataSourceStreamReader):
    """Reads the change rows from one completed checkpoint of a job to the newest."""

    def __init__(self, source: PenstockDataSource, schema: pa.Schema, since: int) -> None:
        """Begin after the checkpoint `since`; 0: with all rows of the newest one."""
        self._source = source
        self._schema = schema
        self._since = self._newest = since

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"checkpoint": self._since}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the sequence of the newest completed checkpoint."""
        with contextlib.suppress(NotFoundError):  # between two histories of the job
            self._newest = self._source.plan(None).snapshot.manifest.sequence
        return {"checkpoint": self._newest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the tasks of one micro-batch.

        Raises:
            UsageError: the older checkpoint is no longer retained.
        """
        if start["checkpoint"] == end["checkpoint"]:
            return []
        plan = self._source.cut(self._source.plan(end["checkpoint"]))
        return [*plan.changes_since(start["checkpoint"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of one part; raises SnapshotDamagedError if retention has removed a file."""
        assert isinstance(partition, StatePart)  # noqa: S101 - made above
        return partition.batches(self._schema)


def _keys_of(text: str, schema: pa.Schema) -> pa.Table:
    """Return the keys of a JSON array; each is a value, or an array or object of several columns."""
    try:
        given = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise UsageError(f"keys {text!r} is no JSON: {error}", hint=_KEYS_HINT) from error
    if not isinstance(given, list):
        raise UsageError(f"keys {text!r} is no JSON array", hint=_KEYS_HINT)
    texts = [json.dumps(key if isinstance(key, (list, dict)) else [key], default=str) for key in given]
    return pa.Table.from_batches([parse_key([one], schema) for one in texts], schema)


def _hashes_of(text: str, key_groups: int) -> HashRange:
    first, dash, last = text.partition("-")
    low, high = _number("keyGroups", first), _number("keyGroups", last if dash else first)
    if not low <= high < key_groups:
        raise UsageError(
            f"keyGroups {text!r} is not a range of the snapshot's key groups", hint=f"it has 0 to {key_groups - 1}: A-B"
        )
    return HashRange(first_hash_of(low, key_groups), first_hash_of(high + 1, key_groups) - 1)


def _number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a number", hint='e.g. "0-15" for keyGroups, else digits') from error
