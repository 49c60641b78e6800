"""The loops of the tutorials that wait for a job end with an error that says what was there instead."""

import re
import subprocess

import pytest
from tests.support.tutorials import ROOT, with_ends

pytestmark = pytest.mark.processes
LOOP = "until cat state | grep RUNNING; do sleep 1; done\necho after"


def ran(folder, state, limit_s):
    (folder / "state").write_text(state)
    command = ["bash", "-euo", "pipefail", "-s"]
    return subprocess.run(
        command, cwd=folder, input=with_ends(LOOP, limit_s), capture_output=True, text=True, check=False
    )


def test_a_loop_whose_condition_holds_goes_on(tmp_path):
    done = ran(tmp_path, "live RUNNING", 60)
    assert (done.returncode, done.stdout) == (0, "live RUNNING\nafter\n")


def test_a_loop_that_waits_for_too_long_says_for_what_and_what_was_there(tmp_path):
    done = ran(tmp_path, "live FAILED", 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "the tutorial waits for `cat state | grep RUNNING` for more than 0 s; it prints:\nlive FAILED"
    )


def test_every_loop_of_the_tutorials_has_an_end():
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        loops = len(re.findall(r"^until ", text, re.MULTILINE))
        assert with_ends(text, 60).count("the tutorial waits for") == loops, page.name
