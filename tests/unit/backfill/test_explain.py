"""The plan of a backfill says how each operator runs, and which rows are combined or why not."""

import json
import sys

import polars as pl
import pytest

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
    assert PROCESSED.keys() == OPERATORS.keys()


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
