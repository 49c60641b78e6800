"""Runs a question's penstock job in this process, without a failure: a few rows of each partition in turn."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from tests.flink.canonical import line
from tests.flink.question import Question
from tests.flink.world import SCHEMA, QuestionPlan
from tests.sim.workload import Phase

import penstock as ps
from penstock.testing import JobHarness

#: Rows of a batch: small and odd, so that windows begin and end within batches.
_BATCH = 17


def answer_of(question: Question, *, rows: int | None = None, backend: str = "hashmap") -> list[str]:
    """Return the job's results as lines in order; `rows`: only so many of each partition."""
    plan = QuestionPlan.of(question, [Phase(1)])
    env = ps.Environment(checkpoint_interval="1s", state_backend=backend)
    plan.results(env)
    partitions = [part[:rows] for part in plan.rows]
    parallelism = 1 if question.bound_ms is None else 3
    with JobHarness(env, parallelism=parallelism, partitions=len(partitions)) as job:
        for first in range(0, max(map(len, partitions)), _BATCH):
            for number, part in enumerate(partitions):
                if part[first:]:
                    job.push("rows", batch_of(part[first : first + _BATCH]), partition=number)
        job.end()
        found: Any = [tuple(row.values()) for row in job.table("out").to_pylist()]
    if question.upsert:
        found = {row[: question.upsert]: row for row in found}.values()
    return sorted(line(row) for row in found)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as the source has them."""
    return pa.RecordBatch.from_pylist([{**row, "ts": row["ts"] * 1000} for row in rows], schema=SCHEMA)
