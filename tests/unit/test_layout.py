"""The folder `platform/` must not shadow the standard library's module of that name."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", [".", "platform", "platform/penstock", "operators", "dags"])
def test_import_platform_is_the_standard_library(folder):
    where = ROOT / folder
    if not where.exists():  # dags/ holds files from the first DAG on
        where = ROOT
    done = subprocess.run(
        [sys.executable, "-c", "import platform; print(platform.system())"],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "Linux" if sys.platform == "linux" else done.returncode == 0, done.stderr


@pytest.mark.parametrize("root", ["platform", "operators", "connectors"])
def test_source_roots_hold_no_package_file(root):
    assert not (ROOT / root / "__init__.py").exists()
