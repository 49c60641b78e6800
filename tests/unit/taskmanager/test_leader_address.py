"""A TaskManager finds the leader of an HA root by its lease."""

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease, leader_of, take_lead
from penstock.checkpoint.stores import open_store
from penstock.core.errors import Cause, NoJobManagerError
from penstock.rpc.jobmanagers import ElectedJobManager, ListedJobManagers


def lead(root, rpc, above):
    holder = LeaseHolder(id="root", host="h", machine="", pid=1)
    take_lead(open_store(root), LeaderLease(generation=0, jobmanager_id=rpc, holder=holder, rpc=rpc), above)


async def test_the_leaders_address_and_its_successors(tmp_path):
    root = str(tmp_path)
    with pytest.raises(NoJobManagerError, match=r"no JobManager leads .* \(start one with this --ha-root\)") as none:
        leader_of(root)
    assert none.value.cause is Cause.TRANSIENT, "one may start"
    lead(root, "a:6123", 0)
    found = ElectedJobManager(lambda: leader_of(root).rpc)
    assert (found.next_address(), await found.other_leader("a:6123")) == ("a:6123", "")
    lead(root, "b:6123", 1)
    assert (await found.other_leader("a:6123"), found.next_address()) == ("b:6123", "b:6123")


async def test_among_listed_addresses_the_newest_leader_that_answers():
    generations = {"a:1": 4, "b:1": 0, "c:1": 6, "d:1": 5}

    async def generation_of(address):
        return generations[address]

    listed = ListedJobManagers("a:1,b:1, c:1,d:1", generation_of)
    assert [listed.next_address() for _ in range(5)] == ["a:1", "b:1", "c:1", "d:1", "a:1"]
    assert await listed.other_leader("a:1") == "c:1"
    assert [listed.next_address() for _ in range(2)] == ["c:1", "d:1"]
    generations.update({"a:1": 0, "d:1": 0})
    assert await listed.other_leader("c:1") == "", "none answers, or all are suspended"
    assert await ListedJobManagers("a:1", generation_of).other_leader("a:1") == ""
