"""Ctrl-C before the command line is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", [["-m", "penstock"], [str(Path(sys.executable).with_name("penstock"))]])
def test_ctrl_c_while_the_command_line_loads_ends_it_with_one_line(tmp_path, command):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command, "list"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "penstock: interrupted\n")
