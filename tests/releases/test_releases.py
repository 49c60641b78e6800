"""The job goes on from each release's savepoint and gives what it gives when it runs through."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.glob("*.tar.gz"))
LIMIT_S = 600
pytestmark = pytest.mark.timeout(900)


def results(folder, *arguments):
    """Run the job; return its lines, of running counts the last ones only."""
    folder.mkdir()
    command = [str(Path(sys.executable).parent / "penstock"), "run", str(HERE / "job.py"), *arguments]
    environment = {**os.environ, "RELEASES_OUT": str(folder / "out")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    lines, running = [], {}
    for part in (folder / "out").glob("part-*"):
        for text in part.read_text().splitlines():
            line = json.loads(text)
            if line["kind"] == "running":
                count = int(line["text"].split()[0])
                running[line["user_id"]] = max(running.get(line["user_id"], (0, "")), (count, line["text"]))
            else:
                lines.append((line["kind"], line["user_id"], line["text"]))
    return sorted(lines), running


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return results(tmp_path_factory.mktemp("whole") / "run")


def test_the_whole_run_says_something_of_every_kind(whole):
    kinds = {kind for kind, _, _ in whole[0]}
    assert kinds == {"process", "rows", "tumbling", "session", "join", "sliding", "cumulative"}
    assert len(whole[1]) == 20


@pytest.mark.parametrize("release", RELEASES)
def test_a_savepoint_of_a_release_goes_on(release, whole, tmp_path):
    savepoint = tmp_path / "savepoint"
    with tarfile.open(HERE / release) as archive:
        archive.extractall(savepoint, filter="data")
    manifest = json.loads((savepoint / "manifest.json").read_text())
    held = {state["uid"] for subtask in manifest["subtasks"] for state in subtask["keyed"] if state["segments"]}
    assert {"process", "rows", "tumbling", "session", "window-join", "running", "sliding", "cumulative"} <= held
    assert results(tmp_path / "run", "--from", str(savepoint)) == whole


def test_there_is_a_savepoint_of_every_release():
    assert RELEASES
