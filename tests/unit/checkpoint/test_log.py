"""The dense log: one winner per place, ambiguous writes resolved, old leaders refused."""

from __future__ import annotations

import pytest

from penstock.checkpoint.manifest_log import ManifestLog, decode_manifest, highest_generation, key_of, sequence_of
from penstock.core.errors import LeadershipLostError, MetadataDamagedError, SnapshotDamagedError, StorageError
from penstock.core.rand import SeededRand


@pytest.fixture
def log_of(memory, clock, manifest_of):
    def make(generation, *, sealed=True):
        log = ManifestLog(memory, generation, clock, SeededRand(generation))
        if sealed:
            log.seal(manifest_of("seal", run_id="r1"))
        return log

    return make


def fail(store, phase, times=1, operation="put"):
    left = [times]

    def hook(done, _key, at):
        if done == operation and at == phase and left[0]:
            left[0] -= 1
            raise StorageError("the line is broken")

    store.fault = hook
    return left


def test_entries_are_dense_and_carry_their_permits(log_of, manifest_of, memory):
    log = log_of(1)
    first = log.append(manifest_of(checkpoint_id=1))
    second = log.append(manifest_of(checkpoint_id=2))
    assert memory.list("") == [key_of(1), key_of(2), key_of(3)]
    assert (first.manifest.sequence, second.manifest.sequence) == (2, 3)
    assert second.permit.checkpoint_id == 2
    assert second.permit.manifest_sequence == 3
    assert second.permit.generation == 1
    assert [e.manifest.kind for e in log.read()] == ["seal", "checkpoint", "checkpoint"]


def test_the_seal_comes_first(log_of, manifest_of):
    with pytest.raises(LeadershipLostError, match="before the seal"):
        log_of(1, sealed=False).append(manifest_of(checkpoint_id=1))


def test_an_old_leader_finds_its_place_taken(log_of, manifest_of, memory):
    old = log_of(1)
    old.append(manifest_of(checkpoint_id=1))
    log_of(2)
    before = memory.list("")
    for _ in range(3):
        with pytest.raises(LeadershipLostError, match="generation 2"):
            old.append(manifest_of(checkpoint_id=2))
    with pytest.raises(LeadershipLostError):
        old.read()
    with pytest.raises(LeadershipLostError):
        log_of(1)
    assert memory.list("") == before


def test_an_old_leader_cannot_take_a_place_that_retention_freed(log_of, manifest_of):
    from penstock.checkpoint.retention import plan_retention

    old = log_of(1)
    old.append(manifest_of(checkpoint_id=1))
    new = log_of(2)
    for number in range(2, 8):
        new.append(manifest_of(checkpoint_id=number))
        plan = plan_retention([e.manifest for e in new.read()], 1)
        new.delete(plan.sequences, plan.emptied)
    assert [e.manifest.kind for e in new.read()] == ["seal", "fence", "seal", "checkpoint"]
    with pytest.raises(LeadershipLostError):
        old.append(manifest_of(checkpoint_id=2))


def test_a_put_that_succeeded_with_a_broken_answer_is_ours(log_of, manifest_of, memory):
    log = log_of(1)
    fail(memory, "after")
    entry = log.append(manifest_of(checkpoint_id=1))
    assert entry.manifest.sequence == 2
    assert log.append(manifest_of(checkpoint_id=2)).manifest.sequence == 3


def test_a_put_that_failed_is_tried_again(log_of, manifest_of, memory):
    log = log_of(1)
    fail(memory, "before", times=2)
    assert log.append(manifest_of(checkpoint_id=1)).manifest.sequence == 2


def test_an_append_of_unknown_fate_that_turns_up_later_is_stepped_over(log_of, manifest_of, memory):
    log = log_of(1)
    fail(memory, "after", times=100)
    with pytest.raises(StorageError):
        log.append(manifest_of(checkpoint_id=1))
    memory.fault = lambda *_: None
    assert decode_manifest(memory.read(key_of(2))).checkpoint_id == 1
    entry = log.append(manifest_of(checkpoint_id=2))
    assert entry.manifest.sequence == 3
    assert [manifest.sequence for manifest in entry.found] == [2]
    assert log.append(manifest_of(checkpoint_id=3)).found == ()
    assert [e.manifest.checkpoint_id for e in log.read()] == [None, 1, 2, 3]


def test_a_checkpoint_of_unknown_fate_is_returned_with_the_next_checkpoint_unless_it_was_read(
    log_of, manifest_of, memory
):
    log = log_of(1)
    for number in (1, 2):
        fail(memory, "after", times=100)
        with pytest.raises(StorageError):
            log.append(manifest_of(checkpoint_id=number))
        memory.fault = lambda *_: None
        assert log.append(manifest_of("end")).found == ()
        if number == 1:
            log.read()
    assert [manifest.checkpoint_id for manifest in log.append(manifest_of(checkpoint_id=3)).found] == [2]


def test_an_append_whose_entry_cannot_be_read_back_is_of_unknown_fate_too(log_of, manifest_of, memory):
    log = log_of(1)
    broken = [("put", "after"), ("read", "before")]

    def hook(done, _key, at):
        if broken and (done, at) == broken[0]:
            broken.pop(0)
            raise StorageError("the line is broken")

    memory.fault = hook
    with pytest.raises(StorageError):
        log.append(manifest_of(checkpoint_id=1))
    assert log.append(manifest_of(checkpoint_id=2)).manifest.sequence == 3


def test_an_append_that_never_happened_leaves_no_gap(log_of, manifest_of, memory):
    log = log_of(1)
    fail(memory, "before", times=100)
    with pytest.raises(StorageError):
        log.append(manifest_of(checkpoint_id=1))
    memory.fault = lambda *_: None
    assert log.append(manifest_of(checkpoint_id=2)).manifest.sequence == 2


def test_a_seal_passes_what_the_old_leader_still_wrote(log_of, manifest_of, memory, clock):
    old = log_of(1)
    new = ManifestLog(memory, 2, clock, SeededRand(2))
    raced = []

    def hook(operation, key, phase):
        if operation == "put" and phase == "before" and not raced:
            raced.append(key)
            old.append(manifest_of(checkpoint_id=1))

    memory.fault = hook
    assert new.seal(manifest_of("seal")).manifest.sequence == 3
    assert [e.manifest.generation for e in new.read()] == [1, 1, 2]


def test_a_stranger_of_the_same_generation_is_no_success(log_of, manifest_of, memory, clock):
    one = log_of(1)
    other = ManifestLog(memory, 1, clock, SeededRand(99))
    other.seal(manifest_of("seal"))
    with pytest.raises(LeadershipLostError, match="another process with the same generation"):
        one.append(manifest_of(checkpoint_id=1))


def test_entries_the_old_leader_deletes_while_they_are_read_are_passed_over(log_of, manifest_of, memory):
    log = log_of(1)
    for number in (1, 2, 3):
        log.append(manifest_of(checkpoint_id=number))

    def hook(done, key, at):
        if done == "read" and key == key_of(2) and at == "before":
            memory.fault = lambda *_: None
            memory.delete(key)

    memory.fault = hook
    assert [e.manifest.sequence for e in log.read()] == [1, 3, 4]
    memory.fault = lambda done, key, at: memory._objects.pop(key_of(4), None) if done == "read" else None
    with pytest.raises(SnapshotDamagedError, match="disappeared"):
        log.read()


@pytest.mark.parametrize("data", [b"{", b'{"note": "\xff"}'])
def test_a_damaged_entry_is_named(log_of, memory, data):
    log = log_of(1)
    memory.put(key_of(2), data)
    with pytest.raises(MetadataDamagedError, match=key_of(2)):
        log.read()
    with pytest.raises(MetadataDamagedError, match=key_of(2)):
        highest_generation(memory)


def test_keys():
    assert sequence_of(key_of(17)) == 17
    assert sequence_of("manifests/x.json") is None
    assert sequence_of("manifests/00000000000000000017.json.tmp") is None


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_entries_whose_removal_failed_are_removed_at_the_next_call(log_of, manifest_of, memory, operation):
    """Their files go at the next call: an entry that stayed would name files that are gone."""
    log = log_of(1)
    for number in (1, 2, 3):
        log.append(manifest_of(checkpoint_id=number))
    emptied = manifest_of("fence", sequence=2)
    fail(memory, "before", operation=operation)
    with pytest.raises(StorageError):
        log.delete((3,), (emptied,))
    log.delete(())
    assert memory.list("") == [key_of(1), key_of(2), key_of(4)]
    assert decode_manifest(memory.read(key_of(2))).kind == "fence"
