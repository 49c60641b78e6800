"""Flink's command line, from its own distribution, on running penstock jobs."""

import json
import re
from pathlib import Path

import pytest
from tests.flink_tools.cluster import Place
from tests.flink_tools.installation import FlinkCli

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def flink(flink_home, place, tmp_path):
    return FlinkCli(tmp_path, place.address)


def path_in(text, parent):
    """The savepoint's place, as Flink's client prints it."""
    found = re.search(r"Path: (file:)?(\S+)", text)
    assert found, text
    path = Path("/" + found[2].lstrip("/"))
    assert path.is_relative_to(parent), text
    return path


def test_list_savepoint_stop_and_dispose(flink, place, tmp_path):
    job = place.submit("lasting")
    listed = flink("list")
    assert re.search(rf"{job} : lasting \(RUNNING\)", listed), listed

    target = tmp_path / "savepoints"
    taken = path_in(flink("savepoint", job, str(target)), target)
    assert (taken / "manifest.json").exists()
    assert place.state(job) == "RUNNING"

    native = path_in(flink("stop", "--type", "native", "--savepointPath", str(target), job), target)
    formats = [json.loads((folder / "manifest.json").read_text())["native"] for folder in (taken, native)]
    assert formats == [False, True]
    place.wait(job, "FINISHED")
    assert f"{job} : lasting (FINISHED)" in flink("list", "-a")

    assert "disposed" in flink("savepoint", "-dispose", str(taken))
    assert not [path for path in taken.rglob("*") if path.is_file()]
    assert "there is no savepoint at" in flink("savepoint", "-dispose", str(taken), code=1)
    assert "is FINISHED" in flink("stop", job, code=1)


def test_a_standby_takes_commands(flink_home, tmp_path):
    place = Place(tmp_path, jobmanagers=2)
    with place.cluster:
        job = place.submit("led")
        FlinkCli(tmp_path, place.standby)("cancel", job)
        place.wait(job, "CANCELED")


@pytest.mark.nightly
def test_cancel(flink, place):
    job = place.submit("cancelled")
    flink("cancel", job)
    place.wait(job, "CANCELED")
    assert "No running jobs." in flink("list")


@pytest.mark.nightly
def test_a_checkpoint_and_a_drained_stop(flink, place, tmp_path):
    job = place.submit("drained")
    done = place.checkpoints(job)
    assert "checkpoint" in flink("checkpoint", job).lower()
    assert place.checkpoints(job) > done
    stopped = path_in(flink("stop", "--drain", "-p", str(tmp_path), job), tmp_path)
    assert (stopped / "manifest.json").exists()
    place.wait(job, "FINISHED")
