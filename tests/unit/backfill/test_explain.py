"""The plan of a backfill says how each operator runs, and which rows are combined or why not."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime

import polars as pl
import pytest
from tests.unit.docs.documents import names, rows

import penstock as ps
from penstock.backfill.explain import PROCESSED, explain, lines
from penstock.cli import main
from penstock.operators.registry import OPERATORS
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


def planned(tmp_path, aggregate, window=None, **settings):
    env = ps.Environment(checkpoint_interval="1s", parallelism=2, **settings)
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("2s", timestamp="ts")
    orders = env.from_source(DatagenSource(rows=10), watermarks=strategy, uid="orders")
    orders = orders.with_columns(half=pl.col("amount") / 2)
    windows = orders.key_by("user_id").window(window or ps.Tumbling("10s")).aggregate(value=aggregate).uid("totals")
    windows.sink_to(FileSink(str(tmp_path / "out")), uid="out")
    return env.job_graph("totals")


def shown(graph, **options):
    return lines(explain(graph, **({"parts": 3, "piece_rows": 1000, "master": None} | options)))


def test_stages_tasks_operators_and_rows_between_them(tmp_path):
    found = shown(planned(tmp_path, ps.count()), master="local[2]")
    assert found[0].endswith("one task for about 1,000 rows of a split, or for a file, as a job of Spark (local[2])")
    assert "    orders: decodes to columns" in found or "    Source: orders: decodes to columns" in found
    second = next(number for number, line in enumerate(found) if line.startswith("stage 2: "))
    assert found[second].endswith(", 3 tasks, each a range of keys, as a job of Spark (local[2])")
    assert found[second + 1] == (
        "    from stage 1 by key (user_id): one row for each key and pane of a task, where it pays"
    )
    assert any(line.endswith("compiled kernels, over columns") for line in found[second:])
    assert any(line.endswith("writes columns as staged output") for line in found[second:])


def test_every_kind_of_operator_is_described():
    assert PROCESSED.keys() == OPERATORS.keys(), "add the kind to PROCESSED in backfill/explain.py"


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


class Echo(ps.KeyedProcessFunction):
    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Order]:
        yield row


def larger(left: Order, right: Order) -> Order:
    return max(left, right, key=lambda row: row.amount)


def whole(key, window, rows) -> Order:
    return rows[0]


def counted(window):
    return lambda orders, _: orders.key_by("user_id").window(window).aggregate(n=ps.count())


def with_aggregate(aggregate):
    return lambda orders, _: orders.key_by("user_id").window(ps.Tumbling("1s")).aggregate(value=aggregate)


def pair(join):
    return lambda orders, others: join(orders.key_by("user_id"), others.key_by("user_id"))


#: The operations of the guide's table, each between a source and a sink.
OPERATIONS = {
    "select": lambda orders, _: orders.select("user_id"),
    "with_columns": lambda orders, _: orders.with_columns(half=pl.col("amount") / 2),
    "filter": lambda orders, _: orders.filter(pl.col("amount") > 1),
    "Tumbling": counted(ps.Tumbling("1s")),
    "Cumulative": counted(ps.Cumulative("1s", "10s")),
    "Session": counted(ps.Session("1s")),
    "first": with_aggregate(ps.first("amount")),
    "last": with_aggregate(ps.last("amount")),
    "aggregate": lambda orders, _: orders.key_by("user_id").aggregate(n=ps.count()),
    "deduplicate": lambda orders, _: orders.key_by("user_id").deduplicate(),
    "interval_join": pair(lambda left, right: left.interval_join(right, "-1s", "1s")),
    "window_join": lambda orders, others: (
        orders.join(others).where("user_id").equal_to("user_id").window(ps.Tumbling("1s"))
    ),
    "temporal_join": pair(lambda left, right: left.temporal_join(right)),
    "map_batches": lambda orders, _: orders.map_batches(lambda rows: rows, returns=Order),
    "map": lambda orders, _: orders.map(lambda row: row),
    "flat_map": lambda orders, _: orders.flat_map(lambda row: [row], returns=Order),
    "reduce": lambda orders, _: orders.key_by("user_id").reduce(larger),
    "process": lambda orders, _: orders.key_by("user_id").process(Echo()),
    "apply": lambda orders, _: orders.key_by("user_id").window(ps.Tumbling("1s")).apply(whole, returns=Order),
}
TABLE = rows("docs/how-to/backfill.md", "How operators run")


def test_the_guide_has_every_operation():
    assert sorted(name for cells in TABLE for name in names(cells[0])) == sorted(OPERATIONS)


@pytest.mark.parametrize(("name", "runs", "given"), [(name, *cells[1:]) for cells in TABLE for name in names(cells[0])])
def test_the_guide_says_what_explain_says(tmp_path, name, runs, given):
    env = ps.Environment(checkpoint_interval="1s", parallelism=2)
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("2s", timestamp="ts")
    sources = [env.from_source(DatagenSource(rows=10), watermarks=strategy, uid=uid) for uid in ("orders", "others")]
    sources[1].print("others")
    OPERATIONS[name](*sources).uid("op").sink_to(FileSink(str(tmp_path / "out")), uid="out")
    stages = explain(env.job_graph("any"), parts=3, piece_rows=1000, master="local[2]")
    (found,) = [stage for stage in stages if any(operator["uid"] == "op" for operator in stage["operators"])]
    (operator,) = [operator for operator in found["operators"] if operator["uid"] == "op"]
    assert operator["processed"] == runs
    assert {entry["rows"] for entry in found["inputs"]} == ({given} if given else set())


@pytest.mark.parametrize(
    ("aggregate", "window", "settings", "why"),
    [
        (ps.count(), None, {"combine": "off"}, "every row (combine=off)"),
        (ps.sum("half"), None, {}, "every row (sums of floats depend on the order; combine=all combines them)"),
        (ps.first("amount"), None, {}, "every row (first or last values)"),
        (ps.count(), ps.Session("1s"), {}, "every row"),
        (ps.count(), ps.Sliding("1s", "10s"), {}, "every row (its windows take rows one by one)"),
    ],
)
def test_why_rows_are_not_combined(tmp_path, aggregate, window, settings, why):
    (line,) = [line for line in shown(planned(tmp_path, aggregate, window, **settings)) if "from stage 1" in line]
    assert line.endswith(f": {why}")


@pytest.mark.parametrize(
    ("then", "order"),
    [
        (lambda given: given, "key by key"),
        (lambda given: given.filter(pl.col("amount") > 1), "key by key"),
        (
            lambda given: given.map_batches(lambda batch: batch, returns=Order),
            "map_batches(<lambda>) follows",
        ),
    ],
)
def test_the_order_in_which_a_function_gets_its_rows(tmp_path, then, order):
    env = ps.Environment(checkpoint_interval="1s")
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("2s", timestamp="ts")
    orders = env.from_source(DatagenSource(rows=10), watermarks=strategy, uid="orders")
    then(orders.key_by("user_id").process(Echo()).uid("echo")).sink_to(FileSink(str(tmp_path / "out")), uid="out")
    (line,) = [line for line in shown(env.job_graph("any")) if ": Python, row by row" in line]
    shown_order = order if order == "key by key" else f"in order of time ({order})"
    assert line.endswith(f"Python, row by row, {shown_order}")


def test_the_command_runs_nothing_and_needs_no_target(tmp_path, monkeypatch, capsys):
    job = tmp_path / "job.py"
    job.write_text(
        "import penstock as ps\n"
        "from penstock_connectors.datagen import DatagenSource\n"
        "from penstock_connectors.files import FileSink\n"
        "env = ps.Environment()\n"
        "orders = env.from_source(DatagenSource(rows=5), uid='orders', watermarks=None)\n"
        f"orders.select('amount').sink_to(FileSink({str(tmp_path / 'out')!r}), uid='out')\n"
        "env.execute('copy')\n"
    )
    monkeypatch.setattr(sys, "argv", ["penstock", "backfill", str(job), "--explain", "--json"])
    with pytest.raises(SystemExit) as ended:
        main.app()
    assert ended.value.code == 0
    assert [stage["stage"] for stage in json.loads(capsys.readouterr().out)["stages"]] == [1]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sys, "argv", ["penstock", "backfill", str(job)])
    with pytest.raises(SystemExit):
        main.app()
    assert "a backfill needs a folder for its savepoint (add --to URI, or --explain)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--until", "yesterday", "--until 'yesterday' is not a position"),
        ("--cut-over", "yesterday", "--cut-over 'yesterday' is not a position"),
        ("--history", "orders", "--history 'orders' is malformed"),
    ],
)
def test_options_are_checked_with_explain_too(tmp_path, monkeypatch, capsys, option, value, message):
    monkeypatch.setattr(sys, "argv", ["penstock", "backfill", str(tmp_path / "job.py"), "--explain", option, value])
    with pytest.raises(SystemExit) as ended:
        main.app()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
