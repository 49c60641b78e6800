"""The shape of the tree, measured: what a reviewer would otherwise have to say again and again."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.tidy.source_tree import PACKAGES, ROOT, module_files, module_name, nothing, python_files, tracked, tree

TOP_LEVEL = {
    *("dags", "platform", "operators", "connectors", "infra", "tests", "docs"),
    *("pyproject.toml", "README.md", "LICENSE", "requirements.lock"),
}
MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 800, 70, 6
MAX_FILE_BYTES, MAX_TOTAL_BYTES = 200_000, 20_000_000
# modules entered from outside Python's imports: the command line and the provider's entry point
ENTRY_POINTS = {
    *("penstock.cli.main", "penstock.testing.plugin"),
    *("penstock_airflow.get_provider_info", "penstock_airflow.plugin"),
    "penstock_airflow.known_params",  # DAG files name it
}


@cache
def functions(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_modules_are_short():
    nothing(
        f"{path}: {lines} lines, at most {MAX_LINES}"
        for path in python_files()
        if (lines := (ROOT / path).read_text(encoding="utf-8").count("\n")) > MAX_LINES
    )


def test_functions_are_short():
    nothing(
        f"{path}:{node.lineno} {node.name}: {size} lines, at most {MAX_FUNCTION_LINES}"
        for path in python_files()
        for node in functions(path)
        if (size := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    )


def parameters(node):
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len(named) - (bool(named) and named[0].arg in ("self", "cls"))


def is_command(node):
    """A typer command's parameters are the options of the command line, not a function's interface."""
    if any("typer." in ast.unparse(argument.annotation) for argument in node.args.kwonlyargs if argument.annotation):
        return True
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
    return any(isinstance(mark, ast.Attribute) and mark.attr in ("command", "callback") for mark in marks)


def test_functions_have_few_parameters():
    nothing(
        f"{path}:{node.lineno} {node.name}: {parameters(node)} parameters, at most {MAX_PARAMETERS}"
        for path in python_files()
        if path.parts[0] != "tests"  # a test's parameters are the fixtures it asks for
        for node in functions(path)
        if parameters(node) > MAX_PARAMETERS and not is_command(node)
    )


def test_modules_say_what_they_are_for():
    nothing(
        f"{path}: no module docstring"
        for path in python_files()
        if (ROOT / path).stat().st_size and not ast.get_docstring(tree(path))
    )


def test_nothing_is_left_for_later():
    mark = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    nothing(
        f"{path}:{number} {line.strip()}"
        for path in python_files()
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    )


def patched_constants(path):
    """Every constant of a module that a test sets: by `setattr`, or by an assignment."""
    for node in ast.walk(tree(path)):
        found = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            given = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
            own = ast.unparse(node.args[0]) == "sys.modules[__name__]" or str(given[:1]).startswith("['tests.")
            found = "" if own or not given else str(given[0]).rpartition(".")[2]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self":
            found = node.attr
        if re.fullmatch(r"_?[A-Z][A-Z0-9_]+", found):
            yield node.lineno, found


def test_sizes_and_times_are_given_and_not_patched():
    nothing(
        f"{path}:{number} sets {name}: let the code take it as an argument or from its limits"
        for path in python_files()
        if path.parts[0] == "tests" and path.parts[:3] != ("tests", "processes", "infra")  # a script, loaded as a file
        for number, name in patched_constants(path)
    )


@pytest.mark.parametrize("root", PACKAGES)
def test_source_roots_are_no_packages(root):
    assert Path(root, "__init__.py") not in tracked()
    assert Path(root, PACKAGES[root], "py.typed") in tracked()


def imported_names(path):
    """Every dotted name an import of the file may mean, and every string that looks like one (lazy loading)."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("penstock"):
            yield node.value.partition(":")[0]


def test_every_module_is_used():
    ours = module_files()
    used = {name for path in ours for name in imported_names(path) if name != module_name(path)}
    nothing(
        f"{path}: no module of ours imports it"
        for path in ours
        if path.name not in ("__init__.py", "__main__.py") and module_name(path) not in used | ENTRY_POINTS
    )


def test_no_module_is_called_utils():
    nothing(str(path) for path in python_files() if path.stem in ("util", "utils", "helpers", "common", "misc", "base"))


def test_the_repository_stays_small():
    sizes = {path: (ROOT / path).stat().st_size for path in tracked()}
    nothing(f"{path}: {size} bytes, at most {MAX_FILE_BYTES}" for path, size in sizes.items() if size > MAX_FILE_BYTES)
    assert sum(sizes.values()) < MAX_TOTAL_BYTES


def test_top_level_is_what_the_architecture_says():
    found = {path.parts[0] for path in tracked() if not path.parts[0].startswith(".")}
    assert not found - TOP_LEVEL, f"not allowed at the top level: {sorted(found - TOP_LEVEL)}"
    assert not TOP_LEVEL - found, f"missing at the top level: {sorted(TOP_LEVEL - found)}"


@pytest.mark.parametrize("lock", ["requirements.lock", "infra/airflow.lock"])
def test_the_lock_names_no_registry(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


@pytest.mark.parametrize("lock", ["requirements.lock", "infra/airflow.lock"])
def test_the_lock_pins_every_package_with_hashes(lock):
    lines = (ROOT / lock).read_text().splitlines()
    pinned = [number for number, line in enumerate(lines) if re.match(r"[a-z0-9]", line)]
    assert len(pinned) > 50
    nothing(lines[number] for number in pinned if "==" not in lines[number] or "--hash=" not in lines[number + 1])


def test_the_lock_holds_every_direct_dependency():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    direct = [
        *project["project"]["dependencies"],
        *(item for extra in ("kafka", "state", "s3") for item in extras[extra]),
        *project["dependency-groups"]["dev"],
    ]
    names = {re.match(r"[\w-]+", item)[0].lower() for item in direct}
    locked = set(re.findall(r"^([a-z0-9][\w.-]*)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert not names - locked, "run: uv lock, then the export in docs/project/contributing.md"


def test_ci_runs_the_command_of_the_readme():
    command = "python3 infra/bootstrap.py test"
    assert command in (ROOT / "README.md").read_text()
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', f"exec {command}"]
