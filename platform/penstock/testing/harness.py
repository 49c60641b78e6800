"""`JobHarness`: a job in the test's own process, with rows, watermarks and clocks that the test drives."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypedDict, Unpack

import msgspec
import polars as pl
import pyarrow as pa

from penstock.api.building.collection import batch_of_rows
from penstock.api.building.operator_nodes import append_end
from penstock.api.environment import Environment
from penstock.api.job_file import planned
from penstock.api.streams import DataStream
from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.recovery import absolute_paths
from penstock.checkpoint.stores import join_uri, open_store
from penstock.client.call_limit import CallLimit
from penstock.client.in_process import JOB_ID, RUN_ID, Checkpoint, InProcessJob
from penstock.client.kernels import compile_kernels
from penstock.config.settings import parse_duration_ms
from penstock.core.clock import ManualClock
from penstock.core.elements import BarrierKind
from penstock.core.errors import UsageError, argument_text
from penstock.core.rand import SeededRand
from penstock.core.schema import schema_to_text
from penstock.core.views import plain_schema
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.graph.rescale import is_single
from penstock.operators.rows.columns import without_ts
from penstock.snapshots.access.opening import open_snapshot, open_target
from penstock.task.checkpoint.savepoint_copy import write_savepoint
from penstock.testing.fault_plan import Fault, drawn
from penstock.testing.feeds import CollectedRows, Feed, PushedRows, collected_sink, pushed_source, register, unregister

if TYPE_CHECKING:
    from types import TracebackType

#: A moment: a datetime (without a zone: UTC), ISO 8601 text, or milliseconds since 1970.
Time: TypeAlias = dt.datetime | str | int
#: Rows of a source: row objects or dicts, a DataFrame, or an Arrow table.
Rows: TypeAlias = "Iterable[Any] | pl.DataFrame | pa.Table | pa.RecordBatch"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: uid of the sink of a job that was given as a stream.
RESULT = "result"
_COLLECTION = "penstock_connectors.collection:"
_numbers = itertools.count(1)


class _Pushed(NamedTuple):
    source: str
    partition: int
    rows: pa.RecordBatch


class _Watermark(NamedTuple):
    source: str
    timestamp_us: int


class _End(NamedTuple):
    source: str


_Action: TypeAlias = _Pushed | _Watermark | _End


class RunOptions(TypedDict, total=False):
    """Further options of a `JobHarness`."""

    #: What happens at each step.
    faults: Iterable[Fault] | SeededRand
    #: Longest time of a call; a duration such as "30s", or seconds.
    timeout: str | float | None


class JobHarness:
    """A job without its services: the test pushes rows and watermarks, moves the clock, and looks at the results.

    `job` is the path of a job file, an `Environment`, or a stream, whose rows are then those of the sink `"result"`.
    Each source except `env.from_collection` gets the rows of `push`; each sink keeps its rows in a
    list. The operators, their state, checkpoints and restores are those of a cluster. Every call returns when all
    rows are processed. Use it as a context manager, in one thread.
    """

    def __init__(
        self,
        job: str | Path | Environment | DataStream,
        *,
        parallelism: int = 1,
        partitions: int = 1,
        start: Time = "2026-01-01T00:00:00",
        from_savepoint: str | Path | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """Deploy the job: `parallelism` subtasks an operator, `partitions` a source, the clock at `start`.

        `faults=`: one of them happens at each `push`, `watermark` and `end`. A `SeededRand` draws them without end, and
        the order of subtasks. `timeout=`, such as "30s", limits each call: a function that does not return ends it with
        a `PenstockError` that names the function. Close the job then.

        Raises:
            TypeError: an unknown option.
            UsageError: no job, or it cannot be built; no duration or number. StateMismatchError: the savepoint does
                not fit.
            JobFailedError: a function failed when it was opened.
        """
        if unknown := sorted(options.keys() - RunOptions.__annotations__.keys()):
            raise TypeError(f"JobHarness() got an unexpected keyword argument {unknown[0]!r}")
        faults, timeout = options.get("faults", ()), options.get("timeout")
        _require_number("parallelism", parallelism)
        _require_number("partitions", partitions)
        compile_kernels()
        self._inputs: dict[str, PushedRows] = {}
        self._outputs: dict[str, CollectedRows] = {}
        #: Sources with rows of their own.
        self._collections: set[str] = set()
        self._closed = False
        graph = _graph_of(job)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
        root = f"memory://penstock-testing-{next(_numbers)}"
        settings = msgspec.structs.replace(graph.settings, buffer_timeout_ms=0, checkpoint_root=root)
        graph = msgspec.structs.replace(graph, settings=settings)
        self._written = self._with_feeds(graph, partitions)
        self.clock = ManualClock(_us(start) // 1000)
        rand = faults if isinstance(faults, SeededRand) else None
        self._faults = drawn(faults) if isinstance(faults, SeededRand) else iter(faults)
        self._job = InProcessJob(_parallel(self._written, parallelism), self.clock, self._folder, root, rand)
        timeout_ms = None if timeout is None else parse_duration_ms(timeout, "JobHarness: timeout")
        self._limit = CallLimit(graph.name, timeout_ms, lambda: self._job.subtasks)
        self._checkpoint: Checkpoint | None = None
        #: Rows of each sink that belong to the newest checkpoint.
        self._kept: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._since: list[_Action] = []
        try:
            snapshots = _subtasks_of(from_savepoint)
            if snapshots:
                self._checkpoint = Checkpoint(0, snapshots)
            with self._limit.watched():
                self._job.deploy(snapshots, 0 if snapshots else None)
                self._job.settle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free everything."""
        self.close()

    def close(self) -> None:
        """End the job and remove its files; idempotent."""
        self._closed = True
        self._job.close()
        feeds: list[Feed] = [*self._inputs.values(), *self._outputs.values()]
        for feed in feeds:
            unregister(feed)
        store = self._job.store()
        for key in store.list(""):
            store.delete(key)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- input -----------------------------------------------------------------------------------------------------

    def push(self, source: str, rows: Rows, *, partition: int = 0) -> None:
        """Give rows to a source as one batch; its watermark strategy sees them.

        Raises:
            UsageError: there is no such source or partition. GraphError: rows that do not fit its schema.
            JobFailedError: a function failed; its note has the lines of the user's code, and the row.
        """
        feed = self._input(source)
        if not 0 <= partition < feed.partitions:
            msg = f"source {source!r} has no partition {partition}"
            raise UsageError(msg, hint=f"there are {feed.partitions}; JobHarness(..., partitions=N) sets the number")
        batch = batch_of_rows(rows, feed.schema, f"push to {source!r}")
        self._apply(_Pushed(source, partition, batch))

    def watermark(self, source: str, time: Time) -> None:
        """Emit a watermark after a source, as if its strategy had: no row before `time` follows."""
        self._input(source)
        self._apply(_Watermark(source, _us(time)))

    def end(self, *sources: str) -> None:
        """End the input of these sources, by default of all: windows and timers fire up to the end of time."""
        for source in sources or tuple(self._inputs):
            self._input(source)
            self._apply(_End(source))

    def advance(self, duration: str | float) -> None:
        """Move the clock by a duration such as `"10s"` (or seconds); timers of processing time fire."""
        self.clock.advance(parse_duration_ms(duration, "advance"))
        with self._limit.watched():
            self._job.settle()

    def _apply(self, action: _Action) -> None:
        with self._limit.watched():
            self._apply_with_fault(action)

    def _apply_with_fault(self, action: _Action) -> None:
        fault = next(self._faults, Fault())
        if fault.kind == "checkpoint":
            self.checkpoint()
        elif fault.kind == "rescale":
            self.rescale(fault.parallelism)
        self._since.append(action)
        self._begin(action)
        if fault.kind == "crash":
            self._job.run_steps(fault.steps)
            self.crash()
        elif fault.kind == "crash-in-checkpoint":
            self._job.begin_checkpoint()
            self._job.run_steps(fault.steps)
            self.crash()
        else:
            self._job.settle()

    def _begin(self, action: _Action) -> None:
        """Give the job its input; `settle` processes it."""
        match action:
            case _Pushed(source, partition, rows):
                self._inputs[source].push(partition, rows)
            case _Watermark(source, timestamp_us):
                self._job.watermark(self._vertex(source), timestamp_us)
            case _End(source):
                self._inputs[source].ended = True

    @property
    def sinks(self) -> tuple[str, ...]:
        """The uids of the job's sinks."""
        return tuple(self._outputs)

    # --- output ----------------------------------------------------------------------------------------------------

    def table(self, sink: str = "") -> pa.Table:
        """Return all rows of a sink, each exactly once over crashes; with one sink its uid may be left out."""
        _, feed = self._output(sink)
        return pa.Table.from_batches(feed.batches, schema=feed.schema)

    def frame(self, sink: str = "") -> pl.DataFrame:
        """Return all rows of a sink as a Polars DataFrame."""
        return pl.DataFrame(pl.from_arrow(self.table(sink)))

    def rows(self, sink: str = "") -> list[dict[str, Any]]:
        """Return all rows of a sink as dicts."""
        return self.frame(sink).to_dicts()

    def take(self, sink: str = "") -> list[dict[str, Any]]:
        """Return the rows of a sink since the last `take`."""
        uid, _ = self._output(sink)
        rows = self.rows(uid)
        before, self._taken[uid] = self._taken.get(uid, 0), len(rows)
        return rows[before:]

    def late_rows(self, uid: str) -> int:
        """Return how many rows an operator has dropped as late since the last restart."""
        found = [
            link.metrics.late_records_dropped
            for subtask in self._job.subtasks
            for link in subtask.links
            if link.spec.uid == uid
        ]
        if not found:
            raise self._unknown("operator", uid, [o.uid for v in self._written.vertices for o in v.operators])
        return sum(found)

    # --- state -----------------------------------------------------------------------------------------------------

    def state(self, uid: str, name: str) -> pl.DataFrame:
        """Return the rows of a state as it is now, with its key columns; `penstock state show` prints the names."""
        from penstock.snapshots.access.reading import read

        place = self._folder / f"state-{next(_numbers)}"
        self.savepoint(place)
        try:
            return read(str(place), uid=uid, name=name).collect()
        finally:
            shutil.rmtree(place)

    def timers(self, uid: str, *, domain: str = "event") -> pl.DataFrame:
        """Return the timers of a process function: its key columns, and `time`, a datetime in UTC.

        `domain` is `"event"` or `"processing"`.
        """
        found = self.state(uid, f"__timers_{domain}")
        return found.with_columns(pl.from_epoch("__namespace", "us").dt.replace_time_zone("UTC").alias("time")).drop(
            "__namespace"
        )

    def checkpoint(self) -> None:
        """Take a checkpoint: `crash` goes back to it."""
        with self._limit.watched():
            self._checkpoint = self._job.checkpoint()
        self._kept = {uid: sum(b.num_rows for b in feed.batches) for uid, feed in self._outputs.items()}
        self._since.clear()

    def crash(self) -> None:
        """Lose all processes: restore the newest checkpoint, then process again what came since."""
        with self._limit.watched():
            self._restart(self._job.graph)

    def rescale(self, parallelism: int) -> None:
        """Take a checkpoint and continue from it with another parallelism."""
        _require_number("parallelism", parallelism)
        self.checkpoint()
        with self._limit.watched():
            self._restart(_parallel(self._written, parallelism))

    def savepoint(self, folder: str | Path) -> str:
        """Write a savepoint of the job as it is now into an empty folder; return its URI."""
        target, graph = open_target(str(folder)), self._job.graph
        with self._limit.watched():
            taken = self._job.checkpoint(BarrierKind.SAVEPOINT)
        manifest = Manifest(
            kind="savepoint", sequence=0, job_id=JOB_ID, job_name=graph.name, run_id=RUN_ID, generation=0,
            nonce=RUN_ID, created_ms=self.clock.now_ms(), checkpoint_id=taken.id, barrier="savepoint",
            graph_fingerprint=graph.fingerprint, key_groups=graph.settings.key_groups,
            operators=graph.stateful_operators(), subtasks=taken.subtasks, runs=(RUN_ID,),
            # the job's own store is memory of this process
            origin=target.uri,
        )  # fmt: skip
        source = open_store(join_uri(graph.settings.checkpoint_root, graph.name))
        write_savepoint(manifest, source, target)
        return target.uri

    def _restart(self, graph: JobGraph) -> None:
        for feed in self._inputs.values():
            feed.clear()
        for uid, output in self._outputs.items():
            kept = pa.Table.from_batches(output.batches, schema=output.schema).slice(0, self._kept.get(uid, 0))
            output.batches[:] = kept.to_batches()
        self._job.graph = graph
        restored = self._checkpoint
        self._job.deploy(() if restored is None else restored.subtasks, None if restored is None else restored.id)
        self._job.settle()
        for action in self._since:
            self._begin(action)
            self._job.settle()

    # --- graph -----------------------------------------------------------------------------------------------------

    def _with_feeds(self, graph: JobGraph, partitions: int) -> JobGraph:
        vertices = []
        for vertex in graph.vertices:
            operators = tuple(self._with_feed(operator, partitions) for operator in vertex.operators)
            vertices.append(msgspec.structs.replace(vertex, operators=operators))
        return msgspec.structs.replace(graph, vertices=tuple(vertices))

    def _with_feed(self, operator: OperatorSpec, partitions: int) -> OperatorSpec:
        config = operator.config
        if operator.kind == "source" and config["source"]["factory"].startswith(_COLLECTION):
            self._collections.add(operator.uid)
        elif operator.kind == "source":
            spec, rows = pushed_source(config["source"], partitions)
            self._inputs[operator.uid] = rows
            register(rows)
            return msgspec.structs.replace(operator, config={**config, "source": spec})
        if operator.kind == "sink":
            spec, collected = collected_sink(config["sink"])
            self._outputs[operator.uid] = collected
            register(collected)
            return msgspec.structs.replace(operator, config={**config, "sink": spec})
        return operator

    def _vertex(self, source: str) -> JobVertex:
        return next(v for v in self._job.graph.vertices if v.operators[0].uid == source)

    def _input(self, source: str) -> PushedRows:
        if self._closed:
            msg = f"job {self._written.name!r}: the harness is closed, so source {source!r} takes no input"
            raise UsageError(msg, hint="give it inside of the block `with JobHarness(...) as job:`")
        if source in self._collections:
            msg = (
                f"job {self._written.name!r}: source {source!r} has the rows of env.from_collection and takes no others"
            )
            raise UsageError(
                msg,
                hint="read the results with rows(); to push rows to a source such as FileSource, let the job read it",
            )
        if source not in self._inputs:
            raise self._unknown("source", source, [*self._inputs, *sorted(self._collections)])
        return self._inputs[source]

    def _output(self, sink: str) -> tuple[str, CollectedRows]:
        if not sink and len(self._outputs) == 1:
            return next(iter(self._outputs.items()))
        if sink not in self._outputs:
            raise self._unknown("sink", sink, self._outputs)
        return sink, self._outputs[sink]

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> UsageError:
        names = ", ".join(known) or "none"
        return UsageError(f"job {self._written.name!r} has no {what} {name!r}", hint=f"there are: {names}")


def _graph_of(job: str | Path | Environment | DataStream) -> JobGraph:
    if isinstance(job, Environment):
        return job.job_graph()
    if not isinstance(job, DataStream):
        if not isinstance(job, (str, Path)):
            hint = "pass the path of a job file, a ps.Environment or a stream"
            raise UsageError(f"JobHarness: {argument_text(job)} is no job", hint=hint)
        return planned(Path(job), {}, "")
    schema = schema_to_text(plain_schema(without_ts(job.flow.schema)))
    spec = {"factory": "", "config": {}, "delivery": "none", "schema": schema}
    operator = OperatorSpec(uid=RESULT, name="Sink: result", kind="sink", config={"sink": spec}, stateful=True)
    builder = job.environment.builder
    end = append_end(builder, job.flow, operator)
    try:
        return job.environment.job_graph(only=[end])
    finally:
        builder.remove(end)


def _require_number(name: str, value: Any) -> None:
    """Raise UsageError if an argument is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        hint = f"for example {name}=2"
        raise UsageError(f"JobHarness: {name}={value!r} is not a whole number of at least 1", hint=hint)


def _parallel(graph: JobGraph, parallelism: int) -> JobGraph:
    """Return the graph with `parallelism` subtasks an operator, except where one subtask has to see all rows."""
    vertices = tuple(msgspec.structs.replace(v, parallelism=1 if is_single(v) else parallelism) for v in graph.vertices)
    return msgspec.structs.replace(graph, vertices=vertices)


def _subtasks_of(savepoint: str | Path | None) -> tuple[Any, ...]:
    if savepoint is None:
        return ()
    found = open_snapshot(str(savepoint))
    return absolute_paths(found.manifest, found.store.uri).subtasks


def _us(time: Time) -> int:
    """Return microseconds since 1970."""
    if isinstance(time, int):
        return time * 1000
    try:
        moment = time if isinstance(time, dt.datetime) else dt.datetime.fromisoformat(time)
    except (ValueError, TypeError) as error:
        hint = "write for example '2026-01-01T00:00:10', or whole milliseconds since 1970"
        raise UsageError(f"{time!r} is not a time", hint=hint) from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)
