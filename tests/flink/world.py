"""Runs a question's penstock job in the simulated cluster, without a failure, with killed workers, or rescaled.

The deciders, the task loop, the operators, checkpoints and recovery are the engine's own; time, transport and broker
are the simulation's (docs/project/simulation.md). Sinks take rows of any type here.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

import polars as pl
import pyarrow as pa
from tests.flink.canonical import line
from tests.flink.question import Question
from tests.flink.streams import STREAMS, Partitions
from tests.sim.checks import Checks
from tests.sim.connectors import SimCommitter, SimReader, SimSinkFactory, SimSourceFactory, _Current
from tests.sim.faults import Swarm
from tests.sim.runs import Result
from tests.sim.workload import INPUT, OUTPUT, Phase, Plan
from tests.sim.world import World

import penstock as ps
from penstock.config.settings import RestartStrategy
from penstock.connector.sink import SinkContext, SinkSpec
from penstock.connector.source import SourceContext, SourceSpec
from penstock.core.schema import schema_to_text

_NUMBER, _TEXT = pa.int64(), pa.string()
SCHEMA = pa.schema(
    [
        pa.field("id", _NUMBER, nullable=False),
        pa.field("side", _TEXT, nullable=False),
        pa.field("k", _TEXT),
        pa.field("g", _NUMBER),
        pa.field("v", _NUMBER),
        pa.field("w", pa.float64()),
        pa.field("score", _NUMBER, nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("wm", _NUMBER),
    ]
)
#: A worker is killed when so much of the input is there and a checkpoint is complete since the last time.
_KILLS_AT = (0.35, 0.65)


class RowSourceFactory(SimSourceFactory):
    """Partitions of rows of JSON."""

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> RowReader:
        return RowReader(_Current.kafka, spec)


class RowReader(SimReader):
    """Reads them."""

    def batch(self, values: list[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{**row, "ts": row["ts"] * 1000} for row in values], schema=SCHEMA)


class RowSinkFactory(SimSinkFactory):
    """The staged exactly-once sink of rows in the form in which answers are compared."""

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> RowCommitter:
        return RowCommitter(_Current.kafka, spec.config["topic"], _Current.step)


class RowCommitter(SimCommitter):
    """Publishes them."""

    def rows(self, table: pa.Table) -> list[Any]:
        return [tuple(row.values()) for row in table.to_pylist()]


@dataclasses.dataclass(frozen=True)
class _Rows:
    ends: list[int]
    row_schema: pa.Schema = SCHEMA

    def spec(self) -> SourceSpec:
        return SourceSpec(
            factory="tests.flink.world:RowSourceFactory",
            config={"topic": INPUT, "ends": self.ends},
            schema=schema_to_text(SCHEMA),
            bounded=True,
            discovery_interval_ms=None,
        )


class _Sink:
    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        return SinkSpec(
            factory="tests.flink.world:RowSinkFactory",
            config={"topic": OUTPUT},
            delivery="exactly-once",
            schema=schema_to_text(input_schema),
        )


class QuestionPlan(Plan):
    """A question's job over its input."""

    question: Question

    @classmethod
    def of(cls, question: Question, phases: list[Phase]) -> QuestionPlan:
        """The plan of a run."""
        plan = cls(rows=_rows(question), bound_ms=0, size_ms=0, slide_ms=0, phases=phases, input_ms=1_200.0)
        plan.question = question
        plan.settings = {
            "buffer_timeout_ms": 0,
            "checkpoint_interval_ms": 80,
            "checkpoint_timeout_ms": 2_000,
            "checkpoint_tolerated_failures": 100,
            "restart": RestartStrategy(kind="fixed-delay", delay_ms=20),
        }
        return plan

    def source(self, env: ps.Environment) -> ps.DataStream:
        """The rows with event time: Flink's watermark in milliseconds is its last microsecond here."""
        bound_ms = self.question.bound_ms
        if bound_ms is None:
            carried = pl.col("wm") * 1000 + 999
            strategy = ps.WatermarkStrategy.punctuated(timestamp="ts", watermark=carried, unit="us", exact=True)
        else:
            strategy = ps.WatermarkStrategy.bounded_out_of_orderness(f"{bound_ms}ms", timestamp="ts")
        return env.from_source(_Rows([len(rows) for rows in self.rows]), watermarks=strategy, uid="rows")

    def results(self, env: ps.Environment) -> None:
        self.question.job(self.source(env)).sink_to(_Sink(), uid="out")


class _Checks(Checks):
    """Rows may be late; the output is compared by the test."""

    def stepped(self, subtask: Any) -> None:
        for link in subtask._chain.links:
            self.late = max(self.late, link.metrics.late_records_dropped)
            link.metrics.late_records_dropped = 0
        super().stepped(subtask)

    late = 0

    def output(self) -> int:
        return len(self._world.kafka.read_committed(OUTPUT))


class FlinkWorld(World):
    """A history in which workers are killed in the middle of the input, or none."""

    def __init__(self, question: Question, seed: int, phases: list[Phase], *, kills: bool) -> None:
        super().__init__(seed, QuestionPlan.of(question, phases), Swarm.quiet(random.Random(seed)))
        self.checks = _Checks(self)
        self._question = question
        self._kills = list(_KILLS_AT) if kills else []
        self._completed = 0

    def answer(self) -> tuple[list[str], Result]:
        """Run to the end; what stands in the topic then, as lines in order, and what happened."""
        self.scheduler.at(5, "kill", self._kill)
        result = self.execute()
        found: Any = self.kafka.read_committed(OUTPUT)
        if self._question.upsert:
            found = {row[: self._question.upsert]: row for row in found}.values()
        return sorted(line(row) for row in found), result

    def _kill(self) -> None:
        if not self._kills:
            return
        self.scheduler.at(5, "kill", self._kill)
        there = sum(len(rows) for rows in self.kafka.topics[INPUT])
        completed = self.swarm.counts["checkpoint-completed"]
        wanted = self._kills[0] * sum(len(rows) for rows in self.plan.rows)
        if there >= wanted and completed > self._completed and self.nemesis.now("worker-killed"):
            self._completed = completed
            del self._kills[0]


def _rows(question: Question) -> Partitions:
    return STREAMS[question.stream](question.seed)


def differences(expected: list[str], found: list[str]) -> str:
    """What is missing and what is too much, a few of each; empty when they are equal."""
    missing, surplus = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not missing and not surplus:
        return ""
    shown = "\n".join(["missing:", *sorted(missing)[:5], "not Flink's:", *sorted(surplus)[:5]])
    return f"{missing.total()} of {len(expected)} rows are missing, {surplus.total()} are not Flink's\n{shown}"
