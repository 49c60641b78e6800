"""Who may run a job, who leads a cluster, and what an old leader can no longer write."""

from __future__ import annotations

import msgspec
import pytest

from penstock.checkpoint import ha_records, job_lease
from penstock.checkpoint.ha_records import JobRecord
from penstock.checkpoint.job_lease import JobLease, LeaseHolder, LeaseRecord
from penstock.core.errors import JobIdentityError, LeadershipLostError, StorageError
from penstock.core.rand import SeededRand
from penstock.graph.task_deployment import Attempts


def holder(name, pid=1, machine="elsewhere"):
    return LeaseHolder(id=name, host=f"host-{name}", machine=machine, pid=pid)


@pytest.fixture
def lease_of(store, clock):
    return lambda name, **fields: JobLease(store, holder(name, **fields), clock, ttl_ms=1000)


def test_a_second_holder_is_refused_and_told_who_holds_it(lease_of):
    assert lease_of("one").acquire("job-1").generation == 1
    with pytest.raises(JobIdentityError, match=r"host-one \(job job-1"):
        lease_of("two").acquire("job-2")


def test_the_same_holder_takes_over_at_once_under_a_new_generation(lease_of):
    old = lease_of("one")
    old.acquire("j")
    assert lease_of("one").acquire("j").generation == 2
    with pytest.raises(LeadershipLostError, match="taken over"):
        old.renew()


def test_an_expired_or_released_lease_is_free_and_generations_only_grow(lease_of, clock):
    one = lease_of("one")
    one.acquire("j")
    clock.advance(900)
    one.renew()
    clock.advance(900)
    with pytest.raises(JobIdentityError):
        lease_of("two").acquire("j")
    clock.advance(101)
    two = lease_of("two")
    assert two.acquire("j").generation == 2
    one.release()
    with pytest.raises(JobIdentityError):
        lease_of("three").acquire("j")
    two.release()
    assert lease_of("three").acquire("j").generation == 3


def test_a_deleted_lease_file_does_not_bring_old_generations_back(lease_of, store, clock, manifest_of):
    from penstock.checkpoint.manifest_log import ManifestLog

    ManifestLog(store, 41, clock, SeededRand(1)).seal(manifest_of("seal"))
    assert lease_of("one").acquire("j").generation == 42


def test_an_attempt_stays_in_the_lease_for_the_next_leader_of_the_same_job(memory, clock):
    first = JobLease(memory, holder("one"), clock, ttl_ms=1000)
    assert first.acquire("j").attempts == Attempts()
    first.record_attempt(mixed := Attempts(70_000, {"v": 65_536}))
    first.renew()
    later = msgspec.structs.replace(holder("one"), leader_generation=2)
    second = JobLease(memory, later, clock, ttl_ms=1000)
    assert second.acquire("j").attempts == mixed
    assert (mixed.of("v"), mixed.of("w")) == (65_536, 70_000)
    with pytest.raises(LeadershipLostError):
        first.record_attempt(Attempts(70_001))
    second.record_attempt(Attempts(70_002))
    assert second.record.attempts == Attempts(70_002), "a restart of the whole job"
    second.release()
    assert JobLease(memory, holder("two"), clock, ttl_ms=1000).acquire("another").attempts == Attempts()


def test_a_lease_of_one_attempt_is_read_and_a_reader_of_one_attempt_gets_the_newest(memory, clock):
    """Leaders of the version before attempts of vertices: adopting the newest alone, they adopt no earlier one."""
    lease = JobLease(memory, holder("one"), clock, ttl_ms=1000)
    lease.acquire("j")
    lease.record_attempt(Attempts(70_000, {"v": 65_536}))
    stored = msgspec.json.decode(memory.read(job_lease.LEASE))
    assert stored["attempt"] == 70_000
    del stored["earlier"]
    memory.put(job_lease.LEASE, msgspec.json.encode(stored))
    assert JobLease(memory, holder("one"), clock, ttl_ms=1000).acquire("j").attempts == Attempts(70_000)


def test_a_renewal_whose_answer_was_lost_is_no_loss(memory, clock):
    lease = JobLease(memory, holder("one"), clock, ttl_ms=1000)
    lease.acquire("j")
    failures = [1]

    def hook(operation, _key, phase):
        if operation == "put" and phase == "after" and failures:
            failures.pop()
            raise StorageError("the line is broken")

    memory.fault = hook
    with pytest.raises(StorageError):
        lease.renew()
    lease.renew()
    record = msgspec.json.decode(memory.read(job_lease.LEASE), type=LeaseRecord)
    assert record.generation == 1
    assert not record.released


def test_the_cluster_id_is_minted_once(store):
    assert ha_records.cluster_id(store, SeededRand(1)) == ha_records.cluster_id(store, SeededRand(2))


def record(**fields):
    values = {"job_id": "j", "name": "n", "run_id": "r", "token": "t", "submitted_ms": 1, "graph": b"g"}
    return JobRecord(**(values | fields))


def test_records_come_back_oldest_first(store):
    ha_records.write_record(store, record(job_id="b", submitted_ms=2))
    ha_records.write_record(store, record(job_id="a", submitted_ms=3))
    ha_records.write_record(store, record(job_id="b", submitted_ms=2, ended="FAILED"))
    assert [(r.job_id, r.ended) for r in ha_records.read_records(store)[0]] == [("b", "FAILED"), ("a", "")]


def test_an_old_leader_cannot_overwrite_a_record(store):
    ha_records.write_record(store, record(generation=2))
    with pytest.raises(LeadershipLostError):
        ha_records.write_record(store, record(generation=1, ended="FAILED"))


def test_what_an_older_leader_writes_of_a_job_that_was_taken_over_is_refused(store):
    """It had begun before: its successor has written nothing of the job but that it leads."""
    ha_records.write_record(store, record(job_id="a", generation=1))
    ha_records.write_record(store, record(job_id="b", generation=1, ended="FINISHED"))
    assert [(r.job_id, r.generation) for r in ha_records.read_records(store, 2)[0]] == [("a", 2), ("b", 1)]
    with pytest.raises(LeadershipLostError):
        ha_records.write_record(store, record(job_id="a", generation=1, run_id="rescaled"))
    assert [r.run_id for r in ha_records.read_records(store)[0]] == ["r", "r"]
    with pytest.raises(LeadershipLostError):
        ha_records.read_records(store, 1)


def test_leaders_that_take_a_job_over_are_counted(store):
    ha_records.write_record(store, record(job_id="a", generation=1))
    ha_records.write_record(store, record(job_id="b", generation=1, ended="FINISHED"))
    for generation in (1, 2, 2, 5):
        found = ha_records.read_records(store, generation)[0]
    assert [(r.job_id, r.takeovers) for r in found] == [("a", 2), ("b", 0)]


def test_a_damaged_record_is_named(store):
    store.put("jobs/x.json", b"{")
    ha_records.write_record(store, record())
    found, (damaged,) = ha_records.read_records(store)
    assert ([r.job_id for r in found], damaged.job_id) == (["j"], "x")
    assert "jobs/x.json is damaged" in damaged.error
