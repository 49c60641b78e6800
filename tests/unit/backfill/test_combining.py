"""Combining before the shuffle of a backfill: fewer rows between stages, and the same savepoint."""

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.backfill.engine import LocalEngine
from penstock.backfill.exchange import COMBINED
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.core.clock import SystemClock
from penstock.core.rand import SystemRand
from penstock.core.schema import schema_from_text
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

ROWS = 4_000


class Watched(LocalEngine):
    """Counts the rows after the source, by whether they are combined."""

    sent = (0, 0)

    def run(self, stage, progress):
        if stage.vertex.is_source:
            self.source = stage
        return super().run(stage, progress)

    def close(self):
        counts = {False: 0, True: 0}
        for (vertex, edge), packets in self._given.items():
            if vertex == self.source.vertex.id:
                counts[edge >= COMBINED] += sum(len(self._rows(packet)) for packet in packets)
        self.sent = counts[False], counts[True]
        super().close()

    def _rows(self, packet):
        edge, combined = packet.edge % COMBINED, packet.edge >= COMBINED
        layout = pa.ipc.read_schema(pa.py_buffer(self.source.combined[edge])) if combined else None
        schema = layout or schema_from_text(self.source.outputs[edge].schema)
        return pa.ipc.read_record_batch(pa.py_buffer(packet.data), schema).to_pylist()


@pytest.fixture
def backfill(tmp_path):
    def made(aggregates, name, window=None, state="panes", late=False, **settings):
        env = ps.Environment(checkpoint_interval="1s", parallelism=2, **settings)
        strategy = ps.WatermarkStrategy.bounded_out_of_orderness("2s", timestamp="ts")
        source = DatagenSource(rows=ROWS, users=7, event_rate=100, disorder_ms=2000)
        orders = env.from_source(source, watermarks=strategy, uid="orders")
        windows = orders.key_by("user_id").window(window or ps.Tumbling("10s"))
        if late:
            windows = windows.allowed_lateness("5s").late_to("late")
        totals = windows.aggregate(**aggregates).uid("totals")
        totals.sink_to(FileSink(str(tmp_path / "out")), uid="out")
        if late:
            totals.side_output("late").sink_to(FileSink(str(tmp_path / "late")), uid="late")
        engine = Watched()
        options = BackfillOptions(target=str(tmp_path / name), until={}, parts=3)
        result = Backfill(env.job_graph("totals"), options, SystemClock(), SystemRand()).run(engine, lambda *_: None)
        engine.close()
        panes = ps.snapshots.read(result.uri, uid="totals", name=state).collect()
        return engine.sent, result.rows_staged, panes.sort(pl.all())

    return made


EXACT = {"n": ps.count(), "total": ps.sum("amount"), "most": ps.max("amount")}


@pytest.mark.parametrize("late", [False, True], ids=["", "late rows"])
@pytest.mark.parametrize("window", [ps.Tumbling("10s"), ps.Sliding("20s", "5s"), ps.Cumulative("5s", "20s")], ids=repr)
def test_few_rows_travel_and_the_savepoint_is_the_same(backfill, window, late):
    (rows, combined), staged, panes = backfill(EXACT, "combined", window, late=late)
    assert rows == 0
    assert 0 < combined < ROWS / 5
    (rows, combined), plainly_staged, plain_panes = backfill(EXACT, "plain", window, late=late, combine="off")
    assert (rows, combined) == (ROWS, 0)
    assert staged == plainly_staged > 0
    assert panes.equals(plain_panes)
    assert panes.height > 0


@pytest.mark.parametrize("aggregate", [ps.first("amount"), ps.last("amount")], ids=["first", "last"])
def test_values_that_depend_on_the_order_of_rows_are_not_combined(backfill, aggregate):
    (rows, combined), _, _ = backfill({"value": aggregate}, "ordered")
    assert (rows, combined) == (ROWS, 0)


def test_sessions_are_not_combined(backfill):
    (rows, combined), _, _ = backfill(EXACT, "sessions", ps.Session("1s"), state="sessions")
    assert (rows, combined) == (ROWS, 0)
