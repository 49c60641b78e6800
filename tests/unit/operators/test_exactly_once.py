"""Source and sink operators under a naive job: whatever is aborted or killed, every row is published exactly once."""

import contextlib
import tempfile

import msgspec
import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.config.settings import JobSettings
from penstock.connector.sink import SinkContext, load_factory
from penstock.core.clock import ManualClock
from penstock.core.elements import Barrier
from penstock.core.keygroup import ALL_HASHES
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import FileRef
from penstock.eventtime.strategy import WatermarkStrategy, strategy_to_builtins
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.operator import OperatorContext, OperatorMetrics
from penstock.operators.registry import create_operator
from penstock_connectors.datagen import ORDER_SCHEMA, DatagenSource
from penstock_connectors.files import FileSink

SOURCE = DatagenSource(rows=120, splits=2, users=5, disorder_ms=10)
#: Some steps are listed more often, so that they are drawn more often.
STEPS = st.sampled_from(
    ["poll", "barrier", "upload", *["cut"] * 3, *["complete"] * 2, *["publish"] * 2, "abort", "half", "crash"]
)


class Killed(Exception):
    """The publisher died between two parts."""


class NaiveJob:
    """One chain source -> sink; the manifest is the pair of saved splits and output not yet known published."""

    def __init__(self, folder):
        self.folder = folder
        self.files = {}
        self.checkpoint = 0
        self.manifest = None
        self.sink_spec = FileSink(folder, format="arrow").spec(ORDER_SCHEMA)
        self.start()

    def start(self):
        self.jobs, self.acks, self.uploads = [], {}, []
        restored = ()
        if self.manifest is not None:
            restored, pending = self.manifest
            committer = load_factory(self.sink_spec.factory).create_committer(
                self.sink_spec, SinkContext("job", "out", "run", 0, 1, 1, ManualClock())
            )
            committer.recover(self.permit(self.checkpoint), (), pending, self.read)
        self.source = self.open(
            "source",
            restored,
            source=msgspec.to_builtins(SOURCE.spec()),
            watermarks=strategy_to_builtins(WatermarkStrategy.monotonic(timestamp="ts")),
        )
        enumerator = load_factory(SOURCE.spec().factory).create_enumerator(SOURCE.spec(), first_run=True)
        self.source.add_splits(enumerator.discover(frozenset()), no_more=True)
        self.sink = self.open("sink", (), sink=msgspec.to_builtins(self.sink_spec), chunk_bytes=100)

    def open(self, kind, restored, **config):
        context = OperatorContext(
            spec=OperatorSpec(uid="in" if kind == "source" else "out", name=kind, kind=kind, config=config),
            job_id="job", job_name="job", run_id="run", generation=1, subtask=0, attempt=1, parallelism=1,
            hash_range=ALL_HASHES, settings=JobSettings(checkpoint_interval_ms=1), clock=ManualClock(),
            metrics=OperatorMetrics(), input_schemas=(), keyed_state=None, restored=restored, wake=lambda: None,
            run_async=lambda work, done, what: self.jobs.append((work, done)), report_published=lambda ids: None,
            read_file=self.read, run_waiting=lambda work, what: work(),
        )  # fmt: skip
        operator = create_operator(kind)
        operator.open(context)
        return operator

    def read(self, file):
        return self.files[file.path]

    def permit(self, checkpoint):
        return CommitPermit("job", "run", 1, checkpoint, checkpoint)

    # --- the collector in between -------------------------------------------------------------------------------

    def batch(self, batch):
        self.sink.process_batch(batch, 0, None)

    def watermark(self, watermark):
        pass

    status = watermark

    # --- steps --------------------------------------------------------------------------------------------------

    def poll(self):
        reader = self.source._reader
        original, reader.poll = reader.poll, lambda _: original(4)
        self.source.poll(self, backpressured=False)
        reader.poll = original

    def barrier(self):
        self.checkpoint += 1
        source = self.source.snapshot(Barrier(self.checkpoint), self)
        sink = self.sink.snapshot(Barrier(self.checkpoint), self)
        self.uploads.append((self.checkpoint, source.operator, sink))

    def cut(self):
        self.poll()
        self.barrier()
        self.upload()

    def upload(self):
        if not self.uploads:
            return
        checkpoint, splits, snapshot = self.uploads.pop(0)
        committables = list(snapshot.committables)
        for staged in snapshot.staged:
            refs = []
            for number, chunk in enumerate(staged.chunks):
                path = f"{checkpoint}/{staged.committable.id}/{number}"
                self.files[path] = chunk()
                refs.append(FileRef(path=path))
            committables.append(msgspec.structs.replace(staged.committable, files=tuple(refs)))
            self.sink.staged_written(committables[-1])
        self.acks[checkpoint] = (splits, tuple(committables))

    def complete(self):
        if self.acks:
            checkpoint = min(self.acks)
            self.manifest = self.acks.pop(checkpoint)
            self.source.notify_complete(self.permit(checkpoint))
            self.sink.notify_complete(self.permit(checkpoint))

    def abort(self):
        if self.acks:
            checkpoint = min(self.acks)
            del self.acks[checkpoint]
            self.sink.notify_aborted(checkpoint)
            self.source.notify_aborted(checkpoint)

    def publish(self):
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            done(work(), None)

    def half(self):
        """Publish one part of what is due, then die."""
        if not self.jobs:
            return
        parts = []

        def dying(file):
            if parts:
                raise Killed
            parts.append(file)
            return self.files[file.path]

        publication = self.jobs[0][0].__self__
        publication._read = dying
        with contextlib.suppress(Killed):
            publication.run()
        self.crash()

    def crash(self):
        self.source.close()
        self.sink.close()
        self.start()

    def run_to_the_end(self):
        while not self.source.finished:
            self.poll()
        self.barrier()
        while self.uploads:
            self.upload()
        while self.acks:
            self.complete()
        while self.jobs:
            self.publish()


@examples(100)
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_every_row_is_published_exactly_once(steps):
    with tempfile.TemporaryDirectory() as folder:
        job = NaiveJob(folder)
        for step in steps:
            getattr(job, step)()
        job.run_to_the_end()
        assert job.sink.snapshot(Barrier(10_000), job).committables == ()
        found = pl.read_ipc(f"{folder}/part-*.arrow").sort("ts", "user_id", "amount")
    reader = load_factory(SOURCE.spec().factory).create_reader(
        SOURCE.spec(), type("Context", (), {"clock": ManualClock()})()
    )
    enumerator = load_factory(SOURCE.spec().factory).create_enumerator(SOURCE.spec(), first_run=True)
    reader.add_splits(enumerator.discover(frozenset()))
    expected = pl.from_arrow(pa.Table.from_batches([b.data for b in reader.poll(10_000).batches]))
    assert found.equals(expected.sort("ts", "user_id", "amount"))
