"""Kernels that were compiled once are loaded without numba, exactly those, and refuse what numba would refuse."""

import json
import os
import subprocess
import sys

import msgspec
import pytest
from msgspec.structs import replace

from penstock.kernels.compiler import bundle, native

KERNELS = """
import numpy as np
from penstock.kernels.compiler.compile import I64_IN, I64_OUT, F64_ROWS, i8, kernel, njit, tuple_of

@njit
def _twice(value):
    return FACTOR * value

@kernel(i8(I64_IN, tuple_of(I64_OUT, F64_ROWS)))
def double(values, out):
    written, rows = out
    scratch = np.empty(len(values), np.int64)
    for i in range(len(values)):
        scratch[i] = _twice(values[i])
    for i in range(len(values)):
        written[i] = scratch[i]
        rows[i, 0] = scratch[i] / 2
    return len(values)

@kernel(i8(i8))
def plus_one(value):
    return value + 1
"""
PROBE = """
import json, sys
import numpy as np
import tiny_kernels
from penstock.kernels.compiler import build, register

def outcome(*arguments):
    try:
        return tiny_kernels.double(*arguments)
    except TypeError:
        return "TypeError"

values = np.arange(4)
values.setflags(write=False)
out, rows = np.zeros(4, np.int64), np.zeros((4, 2))
print(json.dumps({
    "result": outcome(values, (out, rows)),
    "out": out.tolist(),
    "rows": rows.tolist(),
    "one": tiny_kernels.plus_one(41),
    "floats": outcome(np.arange(4.0), (out, rows)),
    "strided": outcome(np.arange(8)[::2], (out, rows)),
    "read_only": outcome(values, (values, rows)),
    "flat": outcome(values, (out, np.zeros(4))),
    "too_few": outcome(values, (out,)),
    "no_arrays": outcome(1, 2),
    "compiled": sum(k.compiled for k in register.kernels()),
    "numba": "numba" in sys.modules,
    "later": __import__("numba").njit(lambda x: x[::2].copy().sum())(np.arange(5)),
}, default=int))
build.keep()
"""


def run(folder, factor=2, processor=None):
    source = KERNELS.replace("FACTOR", str(factor))
    path = folder / "tiny_kernels.py"
    if not path.exists() or path.read_text() != source:
        path.write_text(source)
    environment = {**os.environ, "PENSTOCK_KERNEL_BUNDLES": str(folder), "PYTHONPATH": str(folder)}
    if processor is not None:
        environment[native.CPU_NAME], _, environment[native.CPU_FEATURES] = processor.partition(" ")
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=110, check=True, env=environment
    )
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="object code of another form")
def test_a_second_process_does_without_numba(tmp_path):
    first, second = run(tmp_path), run(tmp_path)
    assert (first["compiled"], first["numba"]) == (2, True)
    assert (second["compiled"], second["numba"]) == (0, False)
    for answer in (first, second):
        assert (answer["result"], answer["out"], answer["one"]) == (4, [0, 2, 4, 6], 42)
        assert answer["later"] == 6, "a user's function may still bring numba in"
        assert answer["rows"] == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
        refused = ("floats", "strided", "read_only", "flat", "too_few", "no_arrays")
        assert {name: answer[name] for name in refused} == dict.fromkeys(refused, "TypeError")
    changed = run(tmp_path, factor=3)
    assert (changed["out"], changed["compiled"]) == ([0, 3, 6, 9], 2)


@pytest.mark.skipif(sys.platform != "linux", reason="object code of another form")
def test_kernels_for_the_baseline_of_processors_run_here_and_others_do_not(tmp_path):
    assert run(tmp_path, processor=native.baseline())["compiled"] == 2
    here = run(tmp_path)
    assert (here["compiled"], here["out"]) == (0, [0, 2, 4, 6])
    # also this machine's own code, compiled under the name of another processor
    name, _, features = native.processor().partition(" ")
    assert run(tmp_path, factor=3, processor=f"x86-64 {features}")["compiled"] == 2
    assert name != "x86-64"
    assert run(tmp_path, factor=3)["compiled"] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="object code of another form")
def test_a_damaged_file_is_as_good_as_none(tmp_path):
    run(tmp_path)
    (written,) = tmp_path.glob("*.kernels")
    written.write_bytes(written.read_bytes()[:-10])
    assert run(tmp_path)["compiled"] == 2


def test_what_is_no_object_file_is_refused():
    with pytest.raises(ValueError, match="ELF"):
        native.symbols(b"\xcf\xfa\xed\xfe" * 20)


@pytest.mark.skipif(sys.platform != "linux", reason="object code of another form")
def test_kernels_of_a_module_compiled_here_do_not_hide_the_others_of_the_wheel(tmp_path, monkeypatch):
    """As after `penstock compile` of a part: one module in the installation's own file, two in the wheel's."""
    run(tmp_path)
    (written,) = tmp_path.glob("*.kernels")
    found = msgspec.msgpack.decode(written.read_bytes(), type=bundle._Bundle)
    code = found.kernels["tiny_kernels.double"]
    shipped = replace(found, sources={**found.sources, "other": ("", "")}, kernels={**found.kernels, "other.f": code})
    own = replace(found, kernels={"tiny_kernels.plus_one": found.kernels["tiny_kernels.plus_one"]})
    files = {bundle.SHIPPED: shipped}
    monkeypatch.delenv(bundle.FOLDER, raising=False)
    monkeypatch.setattr(bundle, "_read", lambda _package, path: files.get(path.parent, own))
    monkeypatch.setattr(bundle, "_groups", {})
    monkeypatch.setattr(native, "load", lambda code, name: (code, name))

    def kernel_of(module, name):
        def declared():
            """Stand for a kernel."""

        declared.__module__, declared.__name__ = module, name
        return bundle.function(declared)

    assert bundle.held("tiny_kernels") == {"tiny_kernels", "other"}
    assert kernel_of("tiny_kernels", "plus_one") == (own.kernels["tiny_kernels.plus_one"], "plus_one")
    assert kernel_of("tiny_kernels", "double") == (code, "double"), "of the same module, from the wheel"
    assert kernel_of("tiny_kernels", "unknown") is None


def test_a_user_who_cannot_write_the_installation_has_the_kernels_compiled_there(tmp_path, monkeypatch):
    """As in an image: root installs and compiles, another user runs."""
    installed = bundle._Bundle("", "", {"tiny_kernels": ("", "")}, {})
    monkeypatch.delenv(bundle.FOLDER, raising=False)
    monkeypatch.setattr(bundle, "folder", lambda: tmp_path)
    monkeypatch.setattr(bundle, "_read", lambda _package, path: installed if path.parent == bundle.INSTALLED else None)
    assert bundle.held("tiny_kernels") == {"tiny_kernels"}
    monkeypatch.setenv(bundle.FOLDER, str(tmp_path))
    assert bundle.held("tiny_kernels") == frozenset()
