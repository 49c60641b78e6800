"""What holds for the tree: `platform/` shadows no standard module, and code is unpickled in known places alone."""

import re
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


def test_user_code_is_unpickled_in_one_place_alone():
    """It is one of the operators, which run in slot workers; the control plane and the client unpickle nothing."""
    calls = re.compile(
        r"\b(?:c?loud)?pickle\.(?:loads?|Unpickler)\b|\bmarshal\.loads?\b|\beval\(|\bexec\(|shelve|allow_pickle=True"
    )
    found = {
        str(path.relative_to(ROOT))
        for folder in ("platform", "connectors", "operators")
        for path in (ROOT / folder).rglob("*.py")
        if calls.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"platform/penstock/operators/rows/user_functions.py"}
