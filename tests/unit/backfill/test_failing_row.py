"""A failing task of a backfill names the user's lines and the row, as a live job does; dictionaries are refused."""

import pyarrow as pa
import pytest

import penstock as ps
from penstock.backfill.engine import LocalEngine
from penstock.backfill.qualify import findings
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, UsageError
from penstock.core.rand import SystemRand
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink
from penstock_connectors.kafka import KafkaSource

TIMES = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")


class Count(ps.Schema):
    user_id: int
    n: int


def scored(row) -> Count:
    return Count(user_id=row.user_id, n=1 // (row.user_id - row.user_id))


class Failing(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> None:
        raise OSError("no such place")


def backfilled(tmp_path, build, **settings):
    env = ps.Environment(checkpoint_interval="1s", **settings)
    orders = env.from_source(DatagenSource(rows=20, users=5), watermarks=TIMES, uid="orders")
    build(orders).sink_to(FileSink(str(tmp_path / "out")), uid="out")
    options = BackfillOptions(target=str(tmp_path / "savepoint"), parts=2)
    with pytest.raises(PenstockError) as raised:
        Backfill(env.job_graph(), options, SystemClock(), SystemRand()).run(LocalEngine(), lambda *_: None)
    return str(raised.value), "\n".join(getattr(raised.value, "__notes__", ()))


def failed(orders):
    return orders.key_by("user_id").process(Failing(), returns=Count)


def mapped(orders):
    return orders.map(scored).uid("scored")


def test_a_function_behind_the_source_that_raises_is_told_with_its_lines_and_the_row(tmp_path):
    line, note = backfilled(tmp_path, mapped)
    assert "map 'scored': ZeroDivisionError" in line
    assert note.startswith("In your code:\n")
    assert "in scored\n" in note
    assert "row 1 of a batch of" in note
    assert "user_id=" in note


def test_a_function_behind_a_shuffle_too(tmp_path):
    line, note = backfilled(tmp_path, lambda orders: failed(orders).uid("f"))
    assert "'f'" in line
    assert "OSError: no such place" in note
    assert "user_id=" in note


def test_no_values_where_the_job_hides_them(tmp_path):
    _, note = backfilled(tmp_path, mapped, show_values_in_errors=False)
    assert "in scored\n" in note
    assert "row 1 of" not in note


@pytest.mark.parametrize(
    "kind",
    [pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.int64()))],
    ids=["column", "in a list"],
)
def test_dictionaries_between_stages_are_refused_before_the_run(tmp_path, kind):
    rows = pa.schema({"user_id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "what": kind})
    env = ps.Environment(checkpoint_interval="1s")
    orders = env.from_source(KafkaSource("b:9", "t", rows, format="arrow"), watermarks=TIMES, uid="orders")
    newest = failed(orders).uid("newest")
    newest.sink_to(FileSink(str(tmp_path / "out")), uid="out")
    graph = env.job_graph()
    (found,) = [finding for finding in findings(graph, ()) if "dictionary" in finding.reason]
    assert (found.uid, found.acceptable) == ("newest", False)
    options = BackfillOptions(target=str(tmp_path / "savepoint"), accept=())
    with pytest.raises(UsageError, match=r"dictionary-encoded columns: what \(cast before it, as in"):
        Backfill(graph, options, SystemClock(), SystemRand())
