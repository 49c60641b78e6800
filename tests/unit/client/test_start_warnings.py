"""Before a job starts: files of earlier runs in its output, output that may repeat rows, input that is not read."""

import msgspec
import pytest

import penstock as ps
from penstock.checkpoint.manifest_log import Manifest, encode_manifest, key_of
from penstock.client.start_warnings import earlier_output, repeated_output, unread_input
from penstock.core.snapshot import OperatorStateSnapshot, SubtaskSnapshot
from penstock_connectors.files import FileSink, FileSource


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


def test_exactly_once_output_that_may_repeat_rows_is_named(graph):
    assert repeated_output(graph) == []
    settings = msgspec.structs.replace(graph.settings, checkpoint_mode="at-least-once")
    (line,) = repeated_output(msgspec.structs.replace(graph, settings=settings))
    assert line.startswith("exactly-once sinks (out): with checkpoint_mode='at-least-once', rows may count again")


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


@pytest.fixture
def resumed(tmp_path):
    """A job `numbers` that has read `in/a.jsonl`, with its checkpoint."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}\n')
    env = ps.Environment(checkpoint_root=str(tmp_path / "checkpoints"), checkpoint_interval="1s")
    env.from_source(FileSource(tmp_path / "in", Number), uid="in").sink_to(FileSink(tmp_path / "out"), uid="out")
    split = {"id": str(tmp_path / "in" / "a.jsonl"), "state": {"size": 9, "offset": 9}, "finished": True}
    part = OperatorStateSnapshot(uid="in", name="splits", mode="split", items=(split,))
    entry = Manifest(
        kind="checkpoint",
        sequence=1,
        job_id="0" * 32,
        job_name="numbers",
        run_id="r",
        generation=1,
        nonce="n",
        created_ms=0,
        checkpoint_id=1,
        subtasks=(SubtaskSnapshot(vertex_id="v", subtask=0, operator=(part,)),),
    )
    path = tmp_path / "checkpoints" / "numbers" / key_of(1)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_manifest(entry))
    return env.job_graph("numbers")


def test_a_resumed_job_is_told_of_files_that_it_does_not_read(resumed, tmp_path):
    assert unread_input(resumed, fresh=False) == []
    (tmp_path / "in" / "b.jsonl").write_text('{"n": 2}\n')
    (line,) = unread_input(resumed, fresh=False)
    assert line.startswith(f"source in: {tmp_path / 'in' / 'b.jsonl'} is new since the job began: its 9 bytes are not")
    assert line.endswith("; --fresh with an empty sink folder reads all input again")


def test_a_job_without_a_checkpoint_reads_all_files(resumed, tmp_path):
    (tmp_path / "in" / "b.jsonl").write_text('{"n": 2}\n')
    assert unread_input(resumed, fresh=True) == []
    assert unread_input(msgspec.structs.replace(resumed, name="other"), fresh=False) == []
