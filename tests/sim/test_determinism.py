"""A seed is a history: the same steps at the same times, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.sim.runs import Result
from tests.sim.seeds import run_seed

ROOT = Path(__file__).resolve().parents[2]


@cache
def history(seed: int) -> Result:
    """The history of a seed, run once in this process."""
    return run_seed(seed)


@pytest.mark.parametrize("seed", [5, 17])
def test_the_same_seed_gives_the_same_history(seed):
    first, second = history(seed), run_seed(seed)
    assert (first.fingerprint, first.steps, first.counts) == (second.fingerprint, second.steps, second.counts)


def test_another_seed_gives_another_history():
    assert history(5).fingerprint != history(17).fingerprint


def test_nothing_depends_on_the_order_of_hashes():
    """Sets of texts are iterated in another order in another process."""
    script = "from tests.sim.seeds import run_seed\nprint(*(run_seed(seed).fingerprint for seed in (5, 17, 66)))"
    here = os.environ.get("PYTHONHASHSEED")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONHASHSEED": "2" if here == "1" else "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(history(seed).fingerprint) for seed in (5, 17, 66)]
