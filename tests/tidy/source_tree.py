"""The tracked files and their syntax trees, read once; used by the tests of this folder."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("platform", "connectors", "operators", "dags", "infra", "tests")
PACKAGES = {
    "platform": "penstock",
    "connectors": "penstock_connectors",
    "operators": "penstock_airflow",
}


@cache
def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    files = [Path(name) for name in out.stdout.split("\0") if name and (ROOT / name).exists()]
    assert files, "not a git checkout: the tidy tests look at what is tracked"
    return files


@cache
def python_files():
    return [path for path in tracked() if path.suffix == ".py" and path.parts[0] in SOURCES]


@cache
def tree(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def nothing(found):
    """Fail with one line per finding."""
    found = list(found)
    assert not found, "\n" + "\n".join(found)


def module_name(path):
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
