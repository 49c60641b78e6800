"""Leases of Kubernetes: what every store of a lease must do, and an election by one, whose leader the HA root names."""

import asyncio
import os
import secrets
from pathlib import Path

import pytest
from tests.support.api_server import pod, serving
from tests.support.waiting import until
from tests.unit.checkpoint.test_lease_stores import CONTRACT

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.kubernetes_leases import KubernetesLeases
from penstock.checkpoint.leader_lease import LeaderLease, leader_of, read_lease
from penstock.checkpoint.memory_store import MemoryStore
from penstock.config.settings import ClusterSettings
from penstock.core.clock import SystemClock
from penstock.core.errors import StorageError, UsageError
from penstock.jobmanager.config import JobManagerConfig
from penstock.jobmanager.leadership import Leadership
from penstock.jobmanager.main import JobManager

#: `host:port` of a real API server; `ca.crt` and `token` are in the folder of `PENSTOCK_KUBERNETES_ACCOUNT`.
REAL = os.environ.get("PENSTOCK_TEST_KUBERNETES", "")
TTL_MS = 2_000


@pytest.fixture(
    params=[
        "imitation",
        pytest.param(
            "real",
            marks=[pytest.mark.nightly, pytest.mark.skipif(not REAL, reason="PENSTOCK_TEST_KUBERNETES is not set")],
        ),
    ]
)
def environment(request, tmp_path):
    if request.param == "real":
        yield pod(Path(os.environ["PENSTOCK_KUBERNETES_ACCOUNT"]), REAL)
        return
    with serving(tmp_path / "account") as (_, variables):
        yield variables


@pytest.fixture
def leases(environment):
    """Leases of a name that is new."""
    return KubernetesLeases(f"kubernetes://default/test-{secrets.token_hex(4)}", environment, SystemClock())


@pytest.mark.parametrize("check", CONTRACT)
def test_it_is_a_store_of_leases(leases, check):
    check(leases)


def test_a_deleted_lease_is_not_written_again_by_its_version(leases):
    leases.put_if_absent("leader.json", b"{}")
    _, etag = leases.read_with_etag("leader.json")
    assert leases._ask("DELETE", f"{leases._path}/{leases._object('leader.json')}")[0] == 200
    assert not leases.put_if_match("leader.json", b"{}", etag)
    with pytest.raises(FileNotFoundError):
        leases.read_with_etag("leader.json")


def process(name, root, leases):
    holder = LeaseHolder(id="root", host=name, machine="", pid=1)
    lease = LeaderLease(
        generation=0, jobmanager_id=name, holder=holder, rest=f"http://{name}:1", ttl_ms=TTL_MS,
        election="" if leases is None else leases.uri,
    )  # fmt: skip
    return Leadership(root, lease, SystemClock(), lambda _: None, leases)


async def test_a_standby_takes_over_and_the_ha_root_names_it(leases):
    root, stopping = MemoryStore(), asyncio.Event()
    first, second = process("a", root, leases), process("b", root, leases)
    assert await first.wait(stopping)
    await first.publish("a:2")
    keeping = asyncio.create_task(first.keep(stopping, pytest.fail))
    waiting = asyncio.create_task(second.wait(stopping))
    await until(lambda: second.leader is not None and second.leader.renewals > 2, "renewals that the standby sees")
    published = read_lease(root)
    assert (published.jobmanager_id, published.rpc, published.renewals) == ("a", "a:2", 1), "renewed in the HA root"
    with pytest.raises(UsageError, match=rf"is elected in {leases.uri} .*the same leader_election"):
        await process("c", root, None).wait(stopping)
    keeping.cancel()  # the leader is gone without a release
    assert await waiting
    await second.publish("b:2")
    assert (read_lease(root).jobmanager_id, second.generation) == ("b", 2)
    await second.release()
    assert read_lease(root).released
    assert await process("c", root, None).wait(stopping), "after a release, another election may begin"


async def test_a_jobmanager_leads_by_it(leases, environment, monkeypatch, tmp_path):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = ClusterSettings(rest_port=0, rpc_port=0, leader_election=leases.uri)
    manager = JobManager(JobManagerConfig(ha_uri=str(tmp_path / "ha"), settings=settings))
    assert await manager.start()
    assert read_lease(leases).rpc == leader_of(str(tmp_path / "ha")).rpc == manager.rpc_address
    await manager.close()
    assert read_lease(leases).released


def test_errors_name_the_place_and_the_way_out(tmp_path):
    with serving(tmp_path / "account") as (_, variables):
        leases = KubernetesLeases("kubernetes://default/orders", variables, SystemClock())
        (tmp_path / "account" / "token").write_text("expired")
        with pytest.raises(StorageError, match=r"default/orders: the API server answers 401.*get, create and update"):
            leases.put_if_absent("leader.json", b"{}")
    with pytest.raises(StorageError, match="default/orders: no answer of the API server 127"):
        leases.read_with_etag("leader.json")
    with pytest.raises(UsageError, match="leader_election is 'kubernetes://orders'"):
        KubernetesLeases("kubernetes://orders", variables, SystemClock())
    with pytest.raises(UsageError, match=r"KUBERNETES_SERVICE_HOST.*in a pod"):
        KubernetesLeases("kubernetes://default/orders", {}, SystemClock())
