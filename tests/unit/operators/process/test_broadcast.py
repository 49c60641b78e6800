"""What a function beside a broadcast stream may not do: one error that says where and what instead."""

import base64
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.support.sizes import sizes

import penstock as ps
from penstock.api.building.flow import Flow
from penstock.api.functions.process_functions import BROADCAST_PROCESS as BROADCAST_FORM
from penstock.api.functions.process_functions import compile_two_input
from penstock.api.streams import DataStream, KeyedStream
from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.errors import StateMismatchError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.functions.broadcast_state import BROADCAST
from penstock.operators.process.broadcast_binding import BoundBroadcast, require_declared
from penstock.operators.process.state_binding import StateConfig, StateTypes
from penstock.operators.registry import create_operator
from penstock.operators.rows.user_functions import UserFunctionError
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

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
def opened(bench, tmp_path):
    """Return a function that opens the operator with what is restored."""
    flow = Flow(upstreams=(), schema=SCHEMA)
    streams = KeyedStream(None, flow, ("k",)), DataStream(None, flow)
    made = compile_two_input(BROADCAST_FORM, Function(), None, {}, streams)
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
            limits=sizes(),
        )
    )
    spec = SimpleNamespace(
        uid="fn", payload=made.spec.payload, config=made.spec.config, output_schema=schema_to_text(made.schema)
    )

    def open_with(*restored):
        operator = create_operator("broadcast_process")
        inputs = SCHEMA, SCHEMA
        operator.open(bench.context(spec, SCHEMA, keyed_state=store, input_schemas=inputs, restored=restored))
        return operator

    yield open_with
    store.close()


@pytest.fixture
def run(opened, out):
    operator = opened()

    def put(side, *rows):
        columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
        operator.process_batch(Batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)), side, out)
        return [row["v"] for row in out.rows]

    return put


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


def bound(kind=None, name="rules", **values):
    """Return a broadcast state with keys of text and these fields of values, or one plain value."""
    keys, fields = pa.schema([("key", pa.string())]), pa.schema(values)
    declared = StateConfig(kind="broadcast", values=fields, keys=keys, where=f"process 'fn'.{name}", ttl=None)
    return BoundBroadcast(name, declared, StateTypes(values=kind, keys=None))


class Limit(NamedTuple):
    low: int
    high: int


class Turned(NamedTuple):
    high: int
    low: int


INT = pa.int64()


def limits():
    state = bound(Limit, low=INT, high=INT)
    state.handle._entries["a"] = Limit(1, 2)
    return state.saved()


def test_fields_of_a_broadcast_value_that_are_others_are_an_error_that_names_both():
    kept = bound(Limit, low=INT, high=INT)
    kept.restore(limits())
    assert kept.handle._entries == {"a": Limit(1, 2)}
    others = bound(Turned, high=INT, low=INT), bound(low=INT), bound(Limit, low=INT, high=pa.int32())
    for other in others:
        with pytest.raises(StateMismatchError, match=r"saved with \(key string, low int64, high int64\), the job"):
            other.restore(limits())
        assert not other.handle._entries


def test_broadcast_state_that_was_saved_without_the_names_of_its_fields():
    with pa.ipc.open_stream(base64.b64decode(limits()["rows"])) as stream:
        rows = stream.read_all()
    sink = pa.BufferOutputStream()
    plain = rows.cast(pa.schema([(field.name, field.type) for field in rows.schema]))
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    item = {"state": "rules", "rows": base64.b64encode(sink.getvalue()).decode()}
    kept = bound(Limit, low=INT, high=INT)
    kept.restore(item)
    assert kept.handle._entries == {"a": Limit(1, 2)}
    with pytest.raises(StateMismatchError, match="key_0 string, value_0 int64"):
        bound(low=pa.string()).restore(item)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "x"),
        (pa.float64(), 0.5),
        (pa.bool_(), True),
        (pa.binary(), b"x"),
        (pa.decimal128(9, 2), Decimal("1.25")),
        (pa.timestamp("us"), datetime(2026, 1, 1)),
    ],
)
def test_a_plain_broadcast_value_comes_back(kind, value):
    state, again = bound(value=kind), bound(value=kind)
    state.handle._entries["a"] = value
    again.restore(state.saved())
    assert again.handle._entries == {"a": value}


def test_broadcast_state_that_is_declared_no_longer_is_not_forgotten():
    saved = {"rules": limits()}
    require_declared(saved, [bound(low=INT)], "process 'fn'")
    require_declared({"old": {"state": "old", "rows": ""}}, [], "process 'fn'")
    with pytest.raises(
        StateMismatchError, match="holds broadcast state 'rules', which the function does not"
    ) as caught:
        require_declared(saved, [bound(name="rule", low=INT)], "process 'fn'")
    assert "did you mean 'rule'" in caught.value.hint


def test_the_operator_does_not_open_when_broadcast_state_would_be_forgotten(opened):
    held = OperatorStateSnapshot(uid="fn", name=BROADCAST, mode="union", items=(limits(),))
    with pytest.raises(StateMismatchError, match="holds broadcast state 'rules'"):
        opened(held)
