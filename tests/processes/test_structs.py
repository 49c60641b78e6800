"""Struct types that threads decode are prepared at import: msgspec prepares a type at its first use, without a lock."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Prints the types that modules with threads decode and that no import has prepared.
PROGRAM = """
import ast, gc, importlib, sys
from pathlib import Path

import msgspec

DECODERS = {"msgspec.convert": 1, "msgspec.json.Decoder": 0, "msgspec.msgpack.Decoder": 0}


def decoded(tree):
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        position = DECODERS.get(ast.unparse(call.func), 9)
        named = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
        yield from (node for node in (*call.args[position : position + 1], *named) if isinstance(node, ast.Name))


def is_prepared(kind):
    return any(type(known).__name__ == "StructInfo" for known in gc.get_referents(kind))


seen = 0
for root, package in (line.split() for line in sys.argv[1:]):
    for path in sorted(Path(root, package).rglob("*.py")):
        names = {node.id for node in decoded(ast.parse(path.read_text()))}
        if not names:
            continue
        module = importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
        for kind in (getattr(module, name, None) for name in sorted(names)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                seen += 1
                if not is_prepared(kind):
                    print(f"{path}: {kind.__name__}")
print(seen, file=sys.stderr)
"""
#: Packages whose code runs in several threads of a process.
THREADED = (
    *(f"platform penstock/{name}" for name in ("checkpoint", "config", "connector", "core", "eventtime", "graph")),
    *(f"platform penstock/{name}" for name in ("jobmanager", "network", "operators", "state", "task")),
    "connectors penstock_connectors",
    *(f"infra/lab penstock_lab/{name}" for name in ("nexmark", "workloads")),
)


def test_types_that_threads_decode_are_prepared_by_their_modules():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *THREADED], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "", "call penstock.core.structs.prepare after the type"
    assert int(done.stderr) > 20
