"""`stream.show()` and what notebooks show."""

import tempfile

import polars as pl
import pytest

import penstock as ps
from penstock.client.in_process import InProcessExecutor
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Number(ps.Schema):
    n: int


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_first_rows_of_an_endless_stream(capsys, tmp_path):
    orders = ps.Environment(parallelism=2).from_source(DatagenSource(), uid="orders")
    orders.filter(lambda row: row.user_id == 7).show(3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ 7")]
    assert len(lines) == 3
    assert not list(tmp_path.iterdir()), "nothing stays behind"


def test_all_rows_of_a_bounded_stream(capsys):
    numbers = ps.Environment().from_collection([Number(n=1), Number(n=2)], Number)
    numbers.map(lambda row: row).show()
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[-3:-1]] == ["1", "2"]


def test_a_failure_has_the_users_line():
    def broken(row: Number) -> Number:
        raise ValueError(f"no {row.n}")

    with pytest.raises(ps.JobFailedError, match="map 'broken': ValueError: no 1"):
        ps.Environment().from_collection([Number(n=1)], Number).map(broken).uid("broken").show()


def test_the_graph_stays_as_it_was():
    env = ps.Environment()
    numbers = env.from_collection([Number(n=1)], Number)
    before = env.explain()
    numbers.show()
    assert env.explain() == before


def test_nothing_can_be_submitted_to_its_own_process():
    graph = ps.Environment().from_collection([Number(n=1)], Number).print("x").environment.job_graph("alone")
    with pytest.raises(ps.UsageError, match="'alone' cannot be submitted"):
        InProcessExecutor().submit(graph)


def test_a_job_with_a_sink_is_refused():
    env = ps.Environment(checkpoint_interval="1s")
    env.from_collection([Number(n=1)], Number).sink_to(FileSink("/nowhere"), uid="out")
    with pytest.raises(ps.UsageError, match="'sunk' has a sink"):
        InProcessExecutor().execute(env.job_graph("sunk"))


def test_streams_and_environments_in_notebooks():
    env = ps.Environment()
    stream = env.from_collection([Number(n=1)], Number).with_columns(text=pl.lit("<b>"))
    assert "<td>n</td><td>int64</td>" in stream._repr_html_()
    assert "Source: collection" in env._repr_html_()
    assert "<b>" not in env._repr_html_()


def test_a_notebook_shows_the_graph_of_an_operator_that_has_no_uid_yet():
    env = ps.Environment()
    env.from_collection([Number(n=1)], Number).key_by("n").aggregate(rows=ps.count())
    assert "Aggregate" in env._repr_html_()
