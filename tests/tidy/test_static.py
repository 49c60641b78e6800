"""The static checks are tests: ruff, the formatter, mypy --strict and the import contract."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CHECKED = ["platform", "connectors", "operators", "dags", "infra", "tests", "docs"]


def check(*command, seconds):
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{(done.stdout + done.stderr)[-6000:]}"


def test_ruff():
    check("ruff", "check", "--quiet", *CHECKED, seconds=60)


def test_format():
    check("ruff", "format", "--check", "--quiet", *CHECKED, seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_mypy():
    check("mypy", "--no-error-summary", seconds=380)


@pytest.mark.slow
def test_import_contract():
    check("lint-imports", "--no-cache", seconds=110)
