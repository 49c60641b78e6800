"""The division of a TaskManager's memory among its slots."""

import pytest

from penstock.taskmanager.worker_memory import UNLIMITED, WorkerMemory, excess_text

MB, GB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "managed", "limit"),
    [
        (UNLIMITED, 256 * MB, 2 * GB + 512 * MB),
        (WorkerMemory(total_bytes=8 * GB), 256 * MB, 2 * GB),
        (WorkerMemory(limit_bytes=3 * GB), 256 * MB, 3 * GB),
        (WorkerMemory(total_bytes=8 * GB, limit_bytes=3 * GB), 256 * MB, 3 * GB),
    ],
)
def test_a_worker_is_killed_above_its_own_limit_else_above_its_slots_share(memory, managed, limit):
    assert memory.limit(managed, slots=4) == limit


def test_a_worker_that_fits_into_its_slot_may_start():
    assert WorkerMemory(total_bytes=2 * GB).refusal(256 * MB, slots=4) == ""
    assert UNLIMITED.refusal(64 * GB, slots=4) == ""


def test_a_worker_that_does_not_fit_is_refused_with_both_sizes_and_the_way_out():
    text = WorkerMemory(total_bytes=2 * GB).refusal(512 * MB, slots=4)
    assert text.startswith("the job needs at least 768 MB of memory per slot (512 MB managed), but a slot has 512 MB (")
    assert "lower managed_memory, or start the TaskManager with more --memory or fewer slots" in text


def test_a_worker_that_was_ended_names_the_way_out_of_a_function_of_state_and_of_memory():
    text = excess_text(3 * GB, 2 * GB)
    assert text.startswith(
        "it used 3072 MB of memory, its limit is 2048 MB, and was ended (a function: let it keep and"
    )
    for way in ("held until it returns", "state_backend=rocksdb", "--worker-memory"):
        assert way in text


def test_slots_share_the_total_and_without_one_have_no_size():
    assert WorkerMemory(total_bytes=8 * GB).slot_bytes(4) == 2 * GB
    assert UNLIMITED.slot_bytes(4) == 0
