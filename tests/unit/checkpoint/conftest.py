"""Stores to test against, and short ways to manifests."""

from __future__ import annotations

import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.memory_store import MemoryStore, SubStore
from penstock.core.clock import ManualClock


@pytest.fixture(params=["memory", "sub", "local"])
def store(request, tmp_path):
    if request.param == "local":
        return LocalStore(str(tmp_path / "store"))
    return MemoryStore() if request.param == "memory" else SubStore(MemoryStore(), "below/here")


@pytest.fixture
def memory():
    return MemoryStore()


@pytest.fixture
def clock():
    return ManualClock(1_000_000)


@pytest.fixture
def manifest_of():
    def make(kind="checkpoint", **fields) -> Manifest:
        values = {
            "sequence": 0, "job_id": "j", "job_name": "job", "run_id": "r1", "generation": 1, "nonce": "",
            "created_ms": 0, "runs": ("r1",) if kind == "checkpoint" else (),
        }  # fmt: skip
        return Manifest(kind=kind, **(values | fields))

    return make
