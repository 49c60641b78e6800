"""Whose savepoint a run may start from, and what taking it must leave alone."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.jobmanager.conftest import make_graph

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.manifest_log import Manifest, encode_manifest, seal_entry
from penstock.checkpoint.memory_store import open_memory_store
from penstock.checkpoint.recovery import plan_recovery
from penstock.core.clock import ManualClock
from penstock.core.errors import JobIdentityError, StateMismatchError, StorageError
from penstock.core.rand import SeededRand
from penstock.core.snapshot import Committable, OperatorStateSnapshot, SubtaskSnapshot
from penstock.jobmanager.jobs.job_store import JobStore, StartOptions

HOLDER = LeaseHolder(id="cluster", host="h", machine="elsewhere", pid=1)
ORIGIN, HEIR = "a" * 32, "b" * 32


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store_of(clock, request):
    root = f"memory://{request.node.name}"

    def make(name: str, root: str = root, **start: str | bool) -> JobStore:
        graph = msgspec.structs.replace(make_graph(checkpoint_root=root), name=name)
        return JobStore(graph, StartOptions(**start), HOLDER, clock, SeededRand(1))

    return make


def taken(**changes) -> Manifest:
    """Return the cut the savepoint is of, or one like it."""
    values = {"sequence": 2, "job_id": ORIGIN, "job_name": "origin", "run_id": "r1", "generation": 1, "nonce": "n"}
    values["graph_fingerprint"] = "f"
    return Manifest(**{"kind": "savepoint", "created_ms": 0, "checkpoint_id": 1, **values, **changes})


@pytest.fixture
def savepoint(request):
    place = f"{request.node.name}-savepoint"
    open_memory_store(place).put("manifest.json", encode_manifest(taken()))
    return f"memory://{place}"


def test_a_claim_beside_its_origin_in_the_same_cluster_is_refused_and_takes_nothing(store_of, savepoint):
    origin, heir = store_of("origin"), store_of("heir", from_uri=savepoint)
    origin.seal(ORIGIN, "r1", origin.acquire(ORIGIN, "r1"))
    with pytest.raises(JobIdentityError, match="is run by"):
        heir.acquire(HEIR, "r2")
    origin.renew()
    origin.release()
    assert heir.acquire(HEIR, "r2") > 1


def test_a_root_that_is_no_place_for_files_is_told_by_the_name_of_its_setting(store_of, tmp_path):
    (tmp_path / "file").touch()
    root = str(tmp_path / "file" / "root")
    with pytest.raises(StorageError) as caught:
        store_of("job", root=root).acquire(ORIGIN, "r1")
    assert caught.value.message.startswith(f"checkpoint_root={root!r}: cannot read file://{root}/job/lease.json: Not a")
    assert caught.value.hint.endswith("move it away, or set another checkpoint_root")


def test_a_savepoint_that_does_not_fit_is_refused_before_it_is_claimed(store_of, request):
    place = open_memory_store(f"{request.node.name}-savepoint")
    splits = OperatorStateSnapshot(uid="gone", name="splits", mode="split", items=(1,))
    held = SubtaskSnapshot(vertex_id="v", subtask=0, operator=(splits,))
    place.put("manifest.json", encode_manifest(taken(subtasks=(held,))))
    uri = f"memory://{request.node.name}-savepoint"
    with pytest.raises(StateMismatchError, match="has state of operator 'gone'"):
        store_of("heir", from_uri=uri).acquire(HEIR, "r2")
    assert place.list("") == ["manifest.json"]
    assert store_of("heir", from_uri=uri, allow_non_restored_state=("gone",)).acquire(HEIR, "r2")


def test_a_savepoint_is_not_compared_again_once_the_run_has_a_checkpoint(store_of, request):
    """A run of an earlier version, which compared less, goes on under a new leader."""
    place = open_memory_store(f"{request.node.name}-savepoint")
    splits = OperatorStateSnapshot(uid="gone", name="splits", mode="split", items=(1,))
    held = SubtaskSnapshot(vertex_id="v", subtask=0, operator=(splits,))
    place.put("manifest.json", encode_manifest(taken(subtasks=(held,))))
    uri = f"memory://{request.node.name}-savepoint"
    before = store_of("heir", from_uri=uri, allow_non_restored_state=("gone",))
    log = before.seal(HEIR, "r2", before.acquire(HEIR, "r2"))
    with pytest.raises(StateMismatchError):
        store_of("heir", from_uri=uri).acquire(HEIR, "r2")
    log.append(taken(kind="checkpoint", job_id=HEIR, run_id="r2"))
    assert store_of("heir", from_uri=uri).acquire(HEIR, "r2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph_fingerprint": "another"}, r"repartition .*/origin NEW` makes one of the checkpoint: add --from NEW"),
        (
            {"graph_fingerprint": "another", "barrier": "stop", "note": "s3://b/saved"},
            "have changed since checkpoint 1, and .* stopped with one: add --from s3://b/saved; or start over with",
        ),
        (
            {
                "graph_fingerprint": "f",
                "subtasks": (
                    SubtaskSnapshot(
                        vertex_id="v",
                        subtask=0,
                        operator=(OperatorStateSnapshot(uid="gone", name="splits", mode="split", items=(1,)),),
                    ),
                ),
            },
            "has state of operator 'gone'",
        ),
    ],
)
def test_a_resume_that_cannot_succeed_is_refused_at_its_submission(store_of, changes, message):
    before = store_of("origin")
    log = before.seal(ORIGIN, "r1", before.acquire(ORIGIN, "r1"))
    log.append(taken(kind="checkpoint", **changes))
    before.release()
    with pytest.raises(StateMismatchError, match=message):
        store_of("origin").acquire(HEIR, "r2")
    again = store_of("origin", fresh=True)
    assert again.acquire(HEIR, "r2") > 1, "the refused one has left its lease"
    again.release()
    assert store_of("origin").acquire(ORIGIN, "r1", held_before=True), "a new leader decides when it reads the log"


def test_a_claim_under_another_root_sees_its_origin_too(store_of, savepoint, request):
    origin = store_of("origin")
    log = origin.seal(ORIGIN, "r1", origin.acquire(ORIGIN, "r1"))
    cut = log.append(taken(kind="checkpoint")).manifest
    copy = encode_manifest(msgspec.structs.replace(cut, kind="savepoint", origin=origin.uri))
    open_memory_store(savepoint.removeprefix("memory://")).put("manifest.json", copy)
    heir = store_of("origin", root=f"memory://{request.node.name}-elsewhere", from_uri=savepoint)
    with pytest.raises(JobIdentityError, match="is run by"):
        heir.acquire(HEIR, "r2")
    origin.renew()
    origin.release()
    heir.acquire(HEIR, "r2")
    with pytest.raises(JobIdentityError, match=r"continues as .*elsewhere/origin"):
        store_of("origin").acquire(ORIGIN, "r3")


def test_an_origin_whose_savepoint_another_name_has_claimed_does_not_go_on(store_of, savepoint):
    """Both would publish what follows the savepoint."""
    origin = store_of("origin")
    log = origin.seal(ORIGIN, "r1", origin.acquire(ORIGIN, "r1"))
    cut = log.append(taken(kind="checkpoint", barrier="stop")).manifest
    copy = encode_manifest(msgspec.structs.replace(cut, kind="savepoint"))
    open_memory_store(savepoint.removeprefix("memory://")).put("manifest.json", copy)
    origin.release()
    store_of("heir", from_uri=savepoint).acquire(HEIR, "r2")
    again = store_of("origin")
    with pytest.raises(JobIdentityError, match=r"continues as .*/heir"):
        again.acquire(ORIGIN, "r3")
    for choice in ({"fresh": True}, {"accept_duplicates": True}):
        chosen = store_of("origin", **choice)
        generation = chosen.acquire(ORIGIN, "r3")
        chosen.release()
    log = chosen.seal(ORIGIN, "r4", generation)
    log.append(taken(kind="checkpoint", run_id="r4", checkpoint_id=2))
    again.acquire(ORIGIN, "r5")


def test_a_fork_of_a_backfill_whose_output_is_staged_is_refused_as_nobody_would_publish_it(store_of, savepoint):
    place = open_memory_store(savepoint.removeprefix("memory://"))
    staged = Committable(id="out/r/0/1", uid="out", run_id="r1", subtask=0, checkpoint_id=1, rows=3)
    place.put("manifest.json", encode_manifest(taken(job_id="0" * 32, pending=(staged,))))
    with pytest.raises(StateMismatchError, match="no other job publishes its staged output"):
        store_of("fork", from_uri=savepoint, claim=False).acquire(HEIR, "r2")
    place.put("manifest.json", encode_manifest(taken(job_id="0" * 32)))
    assert store_of("fork", from_uri=savepoint, claim=False).acquire(HEIR, "r2") == 1


def test_a_fork_beside_its_origin_is_none_of_its_business(store_of, savepoint):
    origin, fork = store_of("origin"), store_of("fork", from_uri=savepoint, claim=False)
    origin.seal(ORIGIN, "r1", origin.acquire(ORIGIN, "r1"))
    fork.acquire(HEIR, "r2")
    origin.renew()


@pytest.mark.parametrize("start", ["fresh", "savepoint"])
def test_the_next_run_of_a_rescaled_job_is_in_the_log_and_starts_from_its_own_checkpoint(store_of, savepoint, start):
    """Whoever leads next has to fence the ids of both runs, though the second has no checkpoint yet."""
    job = store_of("job", **({"fresh": True} if start == "fresh" else {"from_uri": savepoint}))
    log = job.seal(ORIGIN, "r1", job.acquire(ORIGIN, "r1"))
    cut = msgspec.structs.replace(taken(job_name="job", kind="checkpoint", runs=("r1",)), generation=1)
    log.append(cut)
    assert (job.read("r1", list_files=False)[2] is None) == (start == "fresh")
    log.append(seal_entry(make_graph(parallelism=3), ORIGIN, "r2", 1, 0))
    entries, _files, source = job.read("r2", list_files=False)
    plan = plan_recovery(entries, "r2", source=source)
    assert [e.manifest.note for e in entries if e.manifest.run_id == "r2"] == [""]
    assert (source, plan.restored) == (None, entries[-2].manifest)
    assert plan.fence == (("job", "r1"), ("job", "r2"))
