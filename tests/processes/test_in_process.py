"""A job in its own process over a source that falls silent: the rows so far are the result."""

import pytest

import penstock as ps
from penstock.api.building.collection import collect
from penstock.client.in_process import InProcessExecutor
from penstock_connectors.datagen import DatagenSource


@pytest.mark.parametrize("uids", [True, False])
def test_a_source_that_falls_silent_ends_the_wait(uids):
    env = ps.Environment()
    env.require_uids = uids
    orders = env.from_source(DatagenSource(rows_per_second=1), uid="orders").map(lambda row: row)
    rows = collect(env, orders.flow, "rows", 1_000, executor=InProcessExecutor(idle_ms=50))
    assert rows.height < 1_000


def test_a_window_needs_no_uid_to_be_looked_at(capsys):
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")
    orders = ps.Environment().from_source(DatagenSource(rows=9_000), watermarks=strategy, uid="orders")
    orders.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count()).show(5)
    assert capsys.readouterr().out.count("UTC") == 12
    assert orders.environment.require_uids
