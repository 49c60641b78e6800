"""The shape of the tree: few modules in a folder, no modules that import each other."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter

from tests.tidy.source_tree import module_files, module_name, tree

#: Modules of a folder, its `__init__` among them.
MOST_MODULES = 21


def modules():
    """Return module -> file, of all packages."""
    return {module_name(path): path for path in module_files()}


def imports_of(path, known):
    """Return the modules of ours that a module imports, for type checking too."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                name if name in known else node.module for name in (f"{node.module}.{a.name}" for a in node.names)
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


def test_a_folder_has_few_modules():
    folders = Counter(str(path.parent) for path in modules().values())
    crowded = {folder: count for folder, count in folders.items() if count > MOST_MODULES}
    assert not crowded, "give it sub-packages, with a layers contract in pyproject.toml"


def test_modules_do_not_import_each_other():
    known = modules()
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    graph = {name: imports_of(path, known) - packages for name, path in known.items() if name not in packages}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"move what both need to a third module: {' <- '.join(error.args[1])}") from None
