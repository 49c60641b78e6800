"""A collector that records and a context with everything at hand, for operators under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import Batch, Watermark, WatermarkStatus
from penstock.core.keygroup import ALL_HASHES
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.operator import OperatorContext, OperatorMetrics


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
            "run_async": lambda work, done: self.jobs.append((work, done)),
            "report_published": self.reported.append,
            "read_file": lambda file: self.files[file.path],
        }
        return OperatorContext(**(values | changes))

    def run_jobs(self) -> None:
        """Run the background work that waits now, each result back to its owner."""
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            try:
                result, error = work(), None
            except Exception as caught:
                result, error = None, caught
            done(result, error)


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def out():
    return Recorder()
