"""A reader that gives scripted poll results, and the source operator over it: for the tests of source operators."""

import json
import sys
import types

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.schema import schema_to_text
from penstock.eventtime.strategy import WatermarkStrategy, strategy_to_builtins
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.sources.source_operator import SourceOperator

SCHEMA = pa.schema([pa.field("v", pa.int64()), pa.field("ts", pa.timestamp("us", tz="UTC"))])
MONOTONIC = WatermarkStrategy.monotonic(timestamp="ts")


class ScriptedReader:
    """Gives one scripted poll result after another."""

    def __init__(self):
        self.script: list[PollResult] = []
        self.splits: dict[str, SourceSplit] = {}
        self.added: list[str] = []
        self.completed: list[tuple[SourceSplit, ...]] = []
        self.closed = 0
        self.paused: set[str] = set()

    def pause_or_resume_splits(self, pause, resume):
        assert not self.paused & set(pause), "paused twice"
        assert set(resume) <= self.paused, "resumed without a pause"
        self.paused = (self.paused | set(pause)) - set(resume)

    def add_splits(self, splits):
        self.added += [s.id for s in splits]
        self.splits |= {s.id: s for s in splits}

    def poll(self, max_rows):
        result = self.script.pop(0) if self.script else PollResult(caught_up=tuple(self.splits))
        for batch in result.batches:
            for split_id in batch.split_ids:
                position = self.splits[split_id].state.get("position", 0)
                state = {"position": position + batch.data.num_rows}
                self.splits[split_id] = msgspec.structs.replace(self.splits[split_id], state=state)
        return result

    def snapshot(self):
        return tuple(self.splits.values())

    def notify_complete(self, splits):
        self.completed.append(splits)

    def close(self):
        self.closed += 1


def scripted_reader(monkeypatch):
    """Return the reader that sources of `opened` read from."""
    made = ScriptedReader()
    module = types.ModuleType("scripted_source")
    module.Factory = type("Factory", (), {"create_reader": lambda self, spec, context: made})
    monkeypatch.setitem(sys.modules, "scripted_source", module)
    return made


def opened(bench, strategy=MONOTONIC, schema=SCHEMA, policy="fail", restored=(), payload=b""):
    source = SourceSpec(
        factory="scripted_source:Factory",
        config={"on_bad_record": policy},
        schema=schema_to_text(schema),
        bounded=True,
    )
    config = {"source": msgspec.to_builtins(source), "watermarks": strategy_to_builtins(strategy)}
    spec = OperatorSpec(uid="in", name="in", kind="source", config=json.loads(json.dumps(config)), payload=payload)
    operator = SourceOperator()
    operator.open(bench.context(spec, restored=restored))
    return operator


def splits(*ids):
    return tuple(SourceSplit(id=i) for i in ids)


def batch(times, ids=("a",), index=None, schema=SCHEMA, **more):
    data = pa.record_batch(
        [pa.array(range(len(times)), pa.int64()), pa.array(times, schema.field(1).type)], schema=schema
    )
    return SourceBatch(data, ids, None if index is None else np.array(index), **more)


def poll(operator, reader, out, *results, backpressured=False):
    reader.script += results
    return operator.poll(out, backpressured=backpressured)
