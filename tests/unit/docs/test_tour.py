"""The tour names files and functions that exist."""

import ast
import re

import pytest
from documents import ROOT, names, read

PAGE = "docs/explanation/tour.md"
PATHS = ("A record", "A checkpoint", "A failure", "A rescale", "Where is it decided")


def names_in(path):
    """Return the functions, classes and methods of a module."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{name}" for name in methods}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("heading", PATHS)
def test_files_and_names_exist(heading):
    part = " ".join(read(PAGE).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0].split())
    found = re.findall(r"((?:`[\w.]+`,? )+)\(([\w/]+\.py)\)", part)
    assert len(found) > 5
    for named, file in found:
        missing = set(names(named)) - names_in(ROOT / file)
        assert not missing, f"{file}: {missing}"
