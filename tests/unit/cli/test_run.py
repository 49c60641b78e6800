"""Output of `penstock run`: totals of the job, and commands that act on exactly this job."""

from pathlib import Path

import pytest

from penstock.cli.start.run import JobCommands, _totals, parse_overrides, run
from penstock.client import executors
from penstock.client.handle import JobHandle
from penstock.core.errors import UsageError
from penstock.graph.executor import JobResult


@pytest.mark.parametrize(
    ("commands", "follow"),
    [
        (JobCommands(Path("live.py"), ""), "penstock run live.py --attach"),
        (JobCommands(Path("live.py"), "", "L1"), "penstock run live.py --attach --name L1"),
        (
            JobCommands(Path("my jobs/live.py"), "http://h:1", "L 1", {"checkpoint_root": "/a b"}),
            "penstock run 'my jobs/live.py' --attach --name 'L 1' --set 'checkpoint_root=/a b' --cluster http://h:1",
        ),
    ],
)
def test_the_hint_follows_exactly_the_submitted_job(commands, follow):
    assert commands.follow == follow


def test_other_hints_name_job_and_cluster():
    assert JobCommands(Path("live.py"), "http://h:1").of("show", "L 1") == "penstock show 'L 1' --cluster http://h:1"


def result(**counts):
    return JobResult(job_id="1", name="live", state="FINISHED", duration_ms=1.0, **counts)


def test_one_row_is_no_rows():
    assert _totals(result(rows_read={"in": 1}, rows_written={"out": 2_000})) == [
        "  read 1 row from in",
        "  wrote 2,000 rows to out",
    ]


def test_bad_records_are_counted_over_restarts_and_their_example_is_not():
    counts = {"rows_read": {"in": 1}, "bad_records": {"in": 2}, "bad_record_examples": {"in": "offset 9"}}
    assert "  bad records in source in: 2; the first: offset 9" in _totals(result(**counts))
    again = "  bad records in source in: 2; the first since the last restart: offset 9"
    assert again in _totals(result(**counts, restarts=1))


class Submitted:
    """Answers as a cluster whose only job runs."""

    def summary(self, job_id):
        return {"state": "RUNNING", "waits-for": "", "restored": None}


LIVE = """\
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink
env = ps.Environment(2)
env.from_source(DatagenSource(rows=2), uid="in").sink_to(FileSink("out"), uid="out")
env.execute("live")
"""


def test_a_run_on_a_cluster_names_the_command_that_shows_the_printed_rows(tmp_path, monkeypatch, capsys):
    file, cluster = tmp_path / "live.py", "http://127.0.0.1:1"
    file.write_text(LIVE.replace('sink_to(FileSink("out"), uid="out")', 'print("rows")'))
    monkeypatch.setattr(executors, "submit_graph", lambda *_: JobHandle(Submitted(), "1", "live"))
    run(file, cluster=cluster, detached=True)
    assert capsys.readouterr().out.splitlines()[2] == (
        f"its workers print the rows of rows: `penstock logs live --cluster {cluster}` shows them"
    )


def test_a_run_on_a_cluster_prints_each_step_until_the_job_starts(tmp_path, monkeypatch, capsys):
    file = tmp_path / "live.py"
    file.write_text(LIVE)
    monkeypatch.setattr(executors, "submit_graph", lambda *_: JobHandle(Submitted(), "1", "live"))
    run(file, cluster="http://127.0.0.1:1", detached=True)
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"reading {file}",
        "planned live: 2 subtasks; submitting it to http://127.0.0.1:1",
        "live 1 is submitted",
    ]


def test_a_job_that_left_input_unread_is_not_told_that_nothing_was_left():
    resumed = {"restored_checkpoint": 1, "resumed_from": "checkpoint 1", "rows_read": {"in": 0}}
    assert _totals(result(**resumed)) == ["  nothing was left to do since checkpoint 1; --fresh starts over"]
    lines = _totals(result(**resumed, unread=("source in: 5 bytes more are not read",)))
    assert lines == ["  it resumed from checkpoint 1 and read no rows", "  source in: 5 bytes more are not read"]
    assert _totals(result(rows_read={"in": 2}, unread=("u",))) == ["  read 2 rows from in", "  u"]


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("taskmanager.slots=4", "'taskmanager.slots' is not a setting of a job", "[taskmanager] of penstock.toml"),
        ("taskmanager.memory=4GB", "'taskmanager.memory' is not", "variable PENSTOCK__TASKMANAGER__MEMORY"),
        (
            "taskmanager.slot=4",
            "unknown setting 'taskmanager.slot'; settings of taskmanager are in penstock.toml, not in a job",
            "did you mean 'taskmanager.slots'?",
        ),
        ("job.parallelism=2", "unknown setting 'job.parallelism'", "did you mean 'parallelism'?"),
        ("paralelism=2", "unknown setting 'paralelism'", "did you mean 'parallelism'?"),
    ],
)
def test_a_setting_that_no_job_has_is_refused_with_its_place(setting, message, hint):
    with pytest.raises(UsageError) as refused:
        parse_overrides([setting])
    assert message in refused.value.message
    assert hint in refused.value.hint
