"""A seed is a history: the same steps at the same times, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.seeds import run_seed

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", [5, 17, 31, 66])
def test_the_same_seed_gives_the_same_history(seed):
    first, second = run_seed(seed), run_seed(seed)
    assert (first.fingerprint, first.steps, first.counts) == (second.fingerprint, second.steps, second.counts)


def test_another_seed_gives_another_history():
    assert run_seed(5).fingerprint != run_seed(6).fingerprint


def test_nothing_depends_on_the_order_of_hashes():
    """Sets of texts are iterated in another order in each of these processes."""
    script = "from tests.sim.seeds import run_seed\nprint(*(run_seed(seed).fingerprint for seed in (5, 17, 66)))"
    told = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    assert len(told) == 1
