"""The slot table."""

import pytest

from penstock.taskmanager.supervisor import SlotError, SlotTable


def test_a_slot_is_held_until_its_worker_is_gone():
    table = SlotTable(2)
    table.allocate(0, "w1", "job")
    with pytest.raises(SlotError, match="held by worker w1"):
        table.allocate(0, "w2", "job")
    assert table.free_slots == (1,)
    assert table.free("w1").slot == 0
    assert table.free("w1") is None
    table.allocate(0, "w2", "job")
    assert [holder.worker_id for holder in table.held] == ["w2"]


def test_asking_again_for_the_same_worker_is_the_same_answer():
    table = SlotTable(2)
    assert table.allocate(1, "w", "job") == table.allocate(1, "w", "job")
    with pytest.raises(SlotError, match="already holds slot 1"):
        table.allocate(0, "w", "job")


def test_one_worker_of_the_same_job_starts_beside_the_one_that_runs_and_takes_its_slot_over():
    table = SlotTable(1)
    table.allocate(0, "w1", "job")
    for name, job, beside in [("w2", "job", False), ("w2", "other", True)]:
        with pytest.raises(SlotError, match="held by worker w1"):
            table.allocate(0, name, job, beside=beside)
    table.allocate(0, "w2", "job", beside=True)
    with pytest.raises(SlotError, match="held by worker w2"):
        table.allocate(0, "w3", "job", beside=True)
    assert [holder.worker_id for holder in table.held] == ["w1", "w2"]
    table.free("w1")
    assert table.of_worker("w2").slot == 0
    assert table.free_slots == ()
    table.free("w2")
    assert table.free_slots == (0,)


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_must_exist(slot):
    with pytest.raises(SlotError, match="does not exist"):
        SlotTable(2).allocate(slot, "w", "job")
