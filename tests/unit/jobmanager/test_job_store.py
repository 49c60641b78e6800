"""Whose savepoint a run may start from, and what taking it must leave alone."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.jobmanager.conftest import make_graph

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.manifest import Manifest, encode_manifest
from penstock.checkpoint.memory_store import open_memory_store
from penstock.core.clock import ManualClock
from penstock.core.errors import JobIdentityError
from penstock.core.rand import SeededRand
from penstock.jobmanager.job_store import JobStore, StartFrom

HOLDER = LeaseHolder(id="cluster", host="h", machine="elsewhere", pid=1)
ORIGIN, HEIR = "a" * 32, "b" * 32


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store_of(clock, request):
    root = f"memory://{request.node.name}"

    def make(name: str, **start: str | bool) -> JobStore:
        graph = msgspec.structs.replace(make_graph(checkpoint_root=root), name=name)
        return JobStore(graph, StartFrom(**start), HOLDER, clock, SeededRand(1))

    return make


@pytest.fixture
def savepoint(request):
    manifest = Manifest(
        kind="savepoint", sequence=2, job_id=ORIGIN, job_name="origin", run_id="r1", generation=1, nonce="n",
        created_ms=0, checkpoint_id=1,
    )  # fmt: skip
    place = f"{request.node.name}-savepoint"
    open_memory_store(place).put("manifest.json", encode_manifest(manifest))
    return f"memory://{place}"


def test_a_claim_beside_its_origin_in_the_same_cluster_is_refused_and_takes_nothing(store_of, savepoint):
    origin, heir = store_of("origin"), store_of("heir", from_uri=savepoint)
    origin.seal(ORIGIN, "r1", origin.acquire(ORIGIN, "r1"))
    with pytest.raises(JobIdentityError, match="is run by"):
        heir.acquire(HEIR, "r2")
    origin.renew()
    origin.release()
    assert heir.acquire(HEIR, "r2") > 1


def test_a_fork_beside_its_origin_is_none_of_its_business(store_of, savepoint):
    origin, fork = store_of("origin"), store_of("fork", from_uri=savepoint, claim=False)
    origin.seal(ORIGIN, "r1", origin.acquire(ORIGIN, "r1"))
    fork.acquire(HEIR, "r2")
    origin.renew()
