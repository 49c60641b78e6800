"""A collector that records and a context with everything at hand, for operators under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.sizes import sizes

from penstock.api.building.flow import Flow
from penstock.api.functions.process_functions import compile_process
from penstock.api.streams import KeyedStream
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import TS_COLUMN, Barrier, BarrierKind, Batch, Watermark, WatermarkStatus
from penstock.core.keygroup import ALL_HASHES, hash_range_of
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.restore_plan import clip_keyed
from penstock.operators.operator import OperatorContext, OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state


class Recorder:
    """Collects everything in order; batches as Arrow, the rest as elements."""

    def __init__(self):
        self.elements: list[Any] = []
        self.sides: dict[str, list[pa.RecordBatch]] = {}

    def batch(self, batch: Batch) -> None:
        assert batch.num_rows, "an empty batch was emitted"
        batch.data.validate(full=True)
        self.elements.append(batch)

    def watermark(self, watermark: Watermark) -> None:
        self.elements.append(watermark)

    def status(self, status: WatermarkStatus) -> None:
        self.elements.append(status)

    def side(self, tag: str, batch: Batch) -> None:
        self.sides.setdefault(tag, []).append(batch.data)

    @property
    def rows(self) -> list[dict]:
        return [row for e in self.elements if isinstance(e, Batch) for row in e.data.to_pylist()]

    @property
    def watermarks(self) -> list[int]:
        return [e.timestamp for e in self.elements if isinstance(e, Watermark)]

    @property
    def statuses(self) -> list[bool]:
        return [e.idle for e in self.elements if isinstance(e, WatermarkStatus)]


@dataclass
class Bench:
    """Makes contexts; background work waits in `jobs` until the test runs it."""

    clock: ManualClock = field(default_factory=ManualClock)
    jobs: list[tuple[Callable, Callable]] = field(default_factory=list)
    reported: list[tuple[str, ...]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    wakes: list[int] = field(default_factory=list)
    #: What operators have waited for.
    waits: list[str] = field(default_factory=list)

    def context(self, spec: OperatorSpec, schema: pa.Schema | None = None, **changes: Any) -> OperatorContext:
        values = {
            "spec": spec,
            "job_id": "job",
            "job_name": "orders",
            "run_id": "run1",
            "generation": 1,
            "subtask": 0,
            "attempt": 1,
            "parallelism": 1,
            "hash_range": ALL_HASHES,
            "settings": JobSettings(checkpoint_interval_ms=1000),
            "clock": self.clock,
            "metrics": OperatorMetrics(),
            "input_schemas": (schema,) if schema is not None else (),
            "keyed_state": None,
            "restored": (),
            "wake": lambda: self.wakes.append(1),
            "run_async": lambda work, done, what: self.jobs.append((work, done)),
            "run_waiting": self.run_waiting,
            "report_published": self.reported.append,
            "read_file": lambda file: self.files[file.path],
            "limits": sizes(),
        }
        return OperatorContext(**(values | changes))

    def run_waiting(self, work: Callable, what: str) -> Any:
        self.waits.append(what)
        return work()

    def run_jobs(self) -> None:
        """Run the background work that waits now, each result back to its owner."""
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            try:
                result, error = work(), None
            except Exception as caught:
                result, error = None, caught
            done(result, error)


#: A key, a value, event time.
KEYED_SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64())]
)


class ProcessBench:
    """One operator, its state's files in memory; `restored` goes on from a snapshot."""

    def __init__(self, world, function, snapshots=(), *, hashes=ALL_HASHES, schema=KEYED_SCHEMA, key=("k",), **options):
        self.world, self.function, self.schema, self.key, self.options = world, function, schema, key, options
        stream = KeyedStream(None, Flow(upstreams=(), schema=schema), key)
        made = compile_process(function, None, options.get("sides", {}), stream=stream)
        world.stores.append(
            open_keyed_state(
                KeyedStateRequest(
                    uid="fn",
                    snapshots=tuple(snapshots),
                    hash_range=hashes,
                    settings=JobSettings(),
                    read=lambda file: world.files[file.path],
                    directory=world.folder / str(len(world.stores)),
                    writer=f"run/v/0/{len(world.stores)}",
                    budget=MemoryBudget(options.get("memory", 1 << 30)),
                    limits=sizes(),
                )
            )
        )
        spec = SimpleNamespace(
            uid="fn", payload=made.spec.payload, config=made.spec.config, output_schema=schema_to_text(made.schema)
        )
        context = world.bench.context(
            spec, schema, keyed_state=world.stores[-1], hash_range=hashes, parallelism=2, subtask=1
        )
        self.operator = create_operator("process")
        self.operator.open(context)
        world.stores[-1].finish_restore()
        self.out = world.recorder()

    def rows(self, *rows):
        batch = pa.RecordBatch.from_pylist(
            [dict(zip(self.schema.names, row, strict=True)) for row in rows], self.schema
        )
        self.operator.process_batch(Batch(batch), 0, self.out)
        return self.taken()

    def watermark(self, time):
        self.operator.process_watermark(Watermark(time), self.out)
        return self.taken()

    def tick(self, ms):
        self.world.bench.clock.advance(ms)
        due = self.operator.next_timer_ms
        if due is not None and due <= self.world.bench.clock.now_ms():
            self.operator.process_time(self.world.bench.clock.now_ms(), self.out)
        return self.taken()

    def taken(self):
        """Return the rows emitted since the last call as (k, what, n, event time)."""
        rows = [tuple(row.values()) for row in self.out.rows]
        self.out.elements.clear()
        return rows

    def snapshot(self, checkpoint=1, kind=BarrierKind.CHECKPOINT):
        taken = []
        for frozen in self.operator.snapshot(Barrier(checkpoint, kind), self.out).keyed:
            assert frozen.copy_pages(1)
            files = {}
            for encoded in frozen.encode():
                files[encoded.position] = FileRef(path=str(len(self.world.files)))
                self.world.files[str(len(self.world.files))] = encoded.data
            frozen.durable(files)
            taken.append(frozen.snapshot())
        return taken

    def restored(self, function=None, parallelism=1, subtask=0, *others):
        hashes = hash_range_of(subtask, parallelism, 1024)
        clipped = [c for s in self.snapshot(9) for c in [clip_keyed(s, hashes)] if c]
        clipped += [c for s in others for c in [clip_keyed(s, hashes)] if c]
        return ProcessBench(self.world, function or self.function, clipped, hashes=hashes, **self.same())

    def same(self):
        return {"schema": self.schema, "key": self.key, **self.options}


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def out():
    return Recorder()


@pytest.fixture
def world(tmp_path, bench, out):
    """Opens process functions: `world.open(function)`."""
    made = SimpleNamespace(folder=tmp_path, bench=bench, recorder=type(out), stores=[], files={})
    made.open = lambda function, *snapshots, **options: ProcessBench(made, function, snapshots, **options)
    yield made
    for store in made.stores:
        store.close()
