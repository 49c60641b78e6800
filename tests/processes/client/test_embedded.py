"""Jobs on an embedded cluster, as a notebook or a plain program runs them."""

import threading

import pytest

import penstock as ps
from penstock.api.environment import use_executor
from penstock.client.executors import EmbeddedExecutor
from penstock.core.errors import StorageError
from penstock_connectors.datagen import DatagenSource

pytestmark = pytest.mark.processes


class Paid(ps.Schema):
    user: str
    amount: int
    ts: int


def test_an_endless_stream_gives_its_first_rows():
    orders = ps.Environment(2).from_source(DatagenSource(splits=2, rows_per_second=2000), uid="orders")
    rows = orders.filter(lambda row: row.amount > 50).execute_and_collect(limit=30)
    assert rows.shape == (30, 3)
    assert rows["amount"].min() > 50


def hangs(row):
    threading.Event().wait()
    return row


def test_a_function_that_does_not_return_ends_a_collection_after_its_timeout():
    orders = ps.Environment(1).from_source(DatagenSource(splits=1, rows_per_second=2000), uid="orders")
    late = r"job collect did not end within 0\.3 s: it is .*with at least 10 s the error names a function"
    with pytest.raises(ps.PenstockError, match=late):
        orders.map(hangs, returns=Paid).execute_and_collect(limit=1, timeout="300ms")


def test_rows_of_this_process_are_printed_where_the_job_runs(tmp_path):
    env = ps.Environment(2, checkpoint_root=tmp_path)
    late = ps.WatermarkStrategy.monotonic(timestamp="ts")
    rows = [Paid(user="ann", amount=3, ts=1_700_000_000_000), {"user": "bob", "amount": 4, "ts": 1_700_000_020_000}]
    paid = env.from_collection(rows, Paid, watermarks=late)
    paid.key_by("user").window(ps.Tumbling("10s")).aggregate(total=ps.sum("amount")).uid("w").print("totals")
    lines, steps = [], []
    with use_executor(EmbeddedExecutor(on_printed=lines.append, on_step=steps.append)):
        result = env.execute("printing")
    assert [step.partition(",")[0] for step in steps] == [
        "planned printing: 4 subtasks; waiting for the JobManager",
        "submitting printing",
    ]
    assert result.rows_read == {"collection": 2}
    start = '"window_start":"2023-11-14T22:13:%s0Z","window_end":"2023-11-14T22:13:%s0Z"'
    assert sorted(lines) == [
        f'totals> {{"user":"ann",{start % (2, 3)},"total":3}}',
        f'totals> {{"user":"bob",{start % (4, 5)},"total":4}}',
    ]


def test_an_object_store_that_refuses_is_reported_before_the_jobmanager_has_started(monkeypatch):
    monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", "http://127.0.0.1:1")
    env, steps = ps.Environment(1, checkpoint_root="s3://bucket/root"), []
    env.from_collection([{"user": "ann", "amount": 3, "ts": 0}], Paid).print("rows")
    refused = (
        r"^checkpoint_root='s3://bucket/root': cannot reach s3://bucket/root/printing at http://127.0.0.1:1: Conn.+"
    )
    with use_executor(EmbeddedExecutor(on_step=steps.append)), pytest.raises(StorageError, match=refused):
        env.execute("printing")
    assert len(steps) == 1, "planned, and nothing submitted"
