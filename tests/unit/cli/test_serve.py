"""Processes that are started from plain arguments."""

import os

from penstock.cli.serve import own_name
from penstock.core.rand import SeededRand


def test_taskmanagers_in_containers_of_one_host_have_different_names():
    """Host and pid are the same: each is process 1 of its container."""
    names = {own_name(SeededRand(seed)) for seed in range(3)}
    assert len(names) == 3
    assert all(name.startswith(f"{os.uname().nodename}-{os.getpid()}-") for name in names)
