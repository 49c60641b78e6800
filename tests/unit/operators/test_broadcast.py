"""What a function beside a broadcast stream may not do: one error that says where and what instead."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.connected_streams import _BROADCAST, compile_two_input
from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.operators.functions import UserFunctionError
from penstock.operators.registry import create_operator
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64())])


class Out(NamedTuple):
    v: int


class Function(ps.KeyedBroadcastProcessFunction):
    shared: ps.BroadcastState[int, int] = ps.broadcast_state()
    value: ps.ValueState[int] = ps.value_state()
    items: ps.ListState[int] = ps.list_state()

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 1:
            self.shared.put(1, 1)
        yield Out(sum(v for _, v in self.shared.items()) + (self.value.value() or 0))

    def process_broadcast(self, row, ctx) -> Iterator[Out]:
        if row.v == 2:
            self.value.update(1)
        elif row.v == 3:
            self.items.append(1)
        elif row.v == 4:
            yield Out(ctx.timestamp)
        else:
            self.shared.put(row.k, row.v)


@pytest.fixture
def run(bench, out, tmp_path):
    flow = SimpleNamespace(schema=SCHEMA, row_type=None, has_event_time=True)
    streams = SimpleNamespace(flow=flow, keys=("k",)), SimpleNamespace(flow=flow)
    made = compile_two_input(_BROADCAST, Function(), None, {}, streams)
    store = open_keyed_state(
        KeyedStateRequest(
            uid="fn",
            snapshots=(),
            hash_range=ALL_HASHES,
            settings=JobSettings(),
            read=lambda file: b"",
            directory=tmp_path,
            writer="run/v/0/1",
            budget=MemoryBudget(1 << 30),
        )
    )
    spec = SimpleNamespace(
        uid="fn", payload=made.spec.payload, config=made.spec.config, output_schema=schema_to_text(made.schema)
    )
    operator = create_operator("broadcast_process")
    operator.open(bench.context(spec, SCHEMA, keyed_state=store, input_schemas=(SCHEMA, SCHEMA)))

    def put(side, *rows):
        columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
        operator.process_batch(Batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)), side, out)
        return [row["v"] for row in out.rows]

    yield put
    store.close()


def test_rows_of_keys_read_what_the_broadcast_rows_have_left(run):
    assert run(1, (1, 10, 5), (2, 20, 6)) == []
    assert run(0, (7, 0, 7)) == [30]
    assert run(1, (9, 4, 8)) == [30, 8]


@pytest.mark.parametrize(
    ("side", "row", "words"),
    [
        (0, (1, 1, 5), "broadcast state 'shared' can only be changed in process_broadcast"),
        (1, (1, 2, 5), "state belongs to a key"),
        (1, (1, 3, 5), "state belongs to a key"),
    ],
)
def test_what_it_may_not_do_is_an_error_of_its_own_line(run, side, row, words):
    run(0, (1, 0, 1))
    with pytest.raises((UserFunctionError, ps.UsageError), match=words):
        run(side, row)
    with pytest.raises((UserFunctionError, ps.UsageError), match=words):
        run(side, row)
