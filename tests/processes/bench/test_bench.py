"""A benchmark that is interrupted."""

import os

import pytest
from tests.support.interrupts import interruptible

from penstock_lab.bench.measuring import measure
from penstock_lab.bench.measuring.tree_meter import TreeMeter
from penstock_lab.bench.options import BenchOptions


def test_an_interrupted_bench_leaves_no_process_behind(tmp_path, monkeypatch):
    (tmp_path / "sleeps.py").write_text(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(measure, "become_reaper", lambda: None)
    meters = []
    monkeypatch.setattr(measure, "TreeMeter", lambda pid: meters.append(pid) or TreeMeter(pid))
    with interruptible(), pytest.raises(KeyboardInterrupt):
        measure.run_child("of:nothing", BenchOptions(), tmp_path, child="sleeps")
    with pytest.raises(ProcessLookupError):
        os.kill(meters[0], 0)
