"""Kernels compiled beforehand: by several processes, once, with a word for whoever waits."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.waiting import wait_until

from penstock.client import kernels
from penstock.core.errors import PenstockError
from penstock.kernels.compiler import build, bundle

pytestmark = pytest.mark.processes

#: Quick ones; the second imports the first.
SOME = ("penstock.kernels.rows.row_order", "penstock.kernels.keys.hashing", "penstock.kernels.keys.key_columns")


@pytest.fixture
def nothing_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv(bundle.FOLDER, str(tmp_path / "bundles"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    return tmp_path


def test_where_bundles_are_switched_off_nothing_is_lacking(monkeypatch):
    monkeypatch.setenv(bundle.FOLDER, "0")
    assert build.unbundled(SOME) == ()


def test_a_module_that_cannot_be_imported_is_told(nothing_compiled, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(nothing_compiled))
    (nothing_compiled / "broken_kernels.py").write_text("raise ImportError('no such symbol')\n")
    monkeypatch.syspath_prepend(str(nothing_compiled))
    with pytest.raises(PenstockError, match=r"kernels failed: ImportError: no such symbol \(repair that, then"):
        build.build(["broken_kernels"], print)


def test_modules_that_import_each_other_are_compiled_by_one_process():
    modules = kernels.kernel_modules(benchmarks=True)
    first, second = build._shares(modules, 2)
    assert sorted([*first, *second]) == sorted(modules)
    for share in (first, second):
        for module in share:
            assert {name for name in build._imported(module) if name in modules} <= set(share), module


def test_what_is_lacking_is_compiled_and_kept_with_progress_from_none_to_all(nothing_compiled, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "kernel_modules", lambda *, benchmarks: SOME)
    assert build.unbundled(SOME) == SOME
    told = []
    assert kernels.compile_kernels(lambda *counts: told.append(counts)) == len(SOME)
    assert told == [(n, len(SOME)) for n in range(len(SOME) + 1)]
    assert build.unbundled(SOME) == ()
    assert kernels.compile_kernels() == 0
    assert capsys.readouterr().err == "", "nothing is left to tell"


def test_a_wait_for_another_process_that_compiles_is_printed(nothing_compiled, monkeypatch, capsys):
    unbundled = iter((SOME, ()))
    monkeypatch.setattr(build, "unbundled", lambda _modules: next(unbundled))
    with ThreadPoolExecutor(1) as pool, build.compile_lock(lambda: pytest.fail("nobody compiles")):
        waiting = pool.submit(kernels.compile_kernels)
        line = "waiting for another process that compiles the kernels"
        wait_until(lambda: capsys.readouterr().err.startswith(line), "the line about the wait")
        assert not waiting.done()
    assert waiting.result() == 0


def test_the_command_says_that_nothing_is_left_to_do():
    command = [sys.executable, "-m", "penstock.cli.main", "compile", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["modules"] == len(kernels.kernel_modules())
