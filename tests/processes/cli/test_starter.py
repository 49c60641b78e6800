"""A command that has to die with its starter, where another process stands between."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("module", "code"), [("penstock.cli.main", 2), ("penstock.cli.serve", 1)])
def test_a_starter_that_stands_behind_another_process_is_told(tmp_path, module, code):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    environment = {**os.environ, "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
    done = subprocess.run(
        [str(wrapper), "-m", module, "jobmanager", "--host", "nowhere"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == code
    assert done.stderr.startswith("penstock: ")
    assert "must `exec` it" in done.stderr
    assert done.stderr.count("\n") == 1
