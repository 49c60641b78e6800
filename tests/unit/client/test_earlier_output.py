"""A job that starts over says so where files of earlier runs lie in its output."""

import msgspec
import pytest

import penstock as ps
from penstock.client.executors import earlier_output
from penstock_connectors.files import FileSink


class Number(ps.Schema):
    n: int


@pytest.fixture
def graph(tmp_path):
    """A job `numbers` that writes to `out`, with its checkpoints below `checkpoints`."""
    env = ps.Environment(checkpoint_root=str(tmp_path / "checkpoints"), checkpoint_interval="1s")
    env.from_collection([Number(n=1)], Number, uid="in").sink_to(FileSink(tmp_path / "out"), uid="out")
    planned = env.job_graph("numbers")
    (tmp_path / "out").mkdir()
    return planned


def published(graph, tmp_path, name="part-out-1.parquet"):
    (tmp_path / "out" / name).write_bytes(b"x")
    return graph


def test_an_empty_folder_and_a_missing_one_are_no_news(graph, tmp_path):
    assert earlier_output(graph, fresh=True) == []
    (tmp_path / "out").rmdir()
    assert earlier_output(graph, fresh=True) == []


def test_an_unfinished_file_is_no_news(graph, tmp_path):
    assert earlier_output(published(graph, tmp_path, ".part-out-1.x"), fresh=True) == []


def test_files_of_an_earlier_run_are_told_to_whom_starts_over(graph, tmp_path):
    (line,) = earlier_output(published(graph, tmp_path), fresh=True)
    assert line.startswith(f"sink out: {tmp_path / 'out'} holds 1 file of earlier runs, but the job starts over")


def test_a_job_whose_checkpoints_are_gone_starts_over_too(graph, tmp_path):
    published(graph, tmp_path)
    assert len(earlier_output(graph, fresh=False)) == 1
    (tmp_path / "checkpoints" / "numbers").mkdir(parents=True)
    assert earlier_output(graph, fresh=False) == []


def test_a_store_that_is_no_folder_is_not_looked_at(graph, tmp_path):
    published(graph, tmp_path)
    settings = msgspec.structs.replace(graph.settings, checkpoint_root="s3://bucket/checkpoints")
    elsewhere = msgspec.structs.replace(graph, settings=settings)
    assert earlier_output(elsewhere, fresh=False) == []
    assert len(earlier_output(elsewhere, fresh=True)) == 1
