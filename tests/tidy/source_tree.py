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
    "infra/lab": "penstock_lab",
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
def module_files():
    """The files of all packages."""
    return [path for path in python_files() if package_root(path)]


@cache
def tree(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def nothing(found):
    """Fail with one line per finding."""
    found = list(found)
    assert not found, "\n" + "\n".join(found)


def package_root(path):
    """The entry of `PACKAGES` that a file belongs to; None for scripts and tests."""
    return next((root for root in PACKAGES if path.is_relative_to(root)), None)


def module_name(path):
    parts = path.relative_to(package_root(path)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
