"""The division of a TaskManager's memory into parts and slots, what a job is granted, and the limit of a worker."""

import pytest

from penstock.config.config_file import TaskManagerSettings
from penstock.core.errors import UsageError
from penstock.taskmanager.memory_division import divided

MB, GB = 1 << 20, 1 << 30


def division(total, slots, **settings):
    return divided(TaskManagerSettings(**settings), slots, total, "--memory")


@pytest.mark.parametrize("total", [1 * GB + 1, 2 * GB, 8 * GB, 100 * GB])
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"managed_memory_fraction": 0.0}, {"framework_memory_bytes": 0}])
def test_the_parts_add_up_to_the_total_and_those_of_the_slots_to_a_part(total, slots, settings):
    found = division(total, slots, **settings)
    parts = (found.framework_bytes, found.task_bytes, found.network_bytes, found.managed_bytes)
    assert sum(parts) == total
    assert found.slot_managed_bytes * slots <= found.managed_bytes
    assert found.framework_bytes + found.limit_bytes * slots <= total
    assert found.task_bytes >= slots * 128 * MB


@pytest.mark.parametrize(
    ("total", "settings", "parts"),
    [
        (8 * GB, {}, (819, 3276, 819, 3276)),
        (100 * GB, {}, (1024, 50176, 10240, 40960)),
        (8 * GB, {"network_memory_max_bytes": 128 * MB}, (819, 3968, 128, 3276)),
        (8 * GB, {"network_memory_min_bytes": 1 * GB, "framework_memory_bytes": 0}, (0, 3891, 1024, 3276)),
        (8 * GB, {"managed_memory_bytes": 2 * GB}, (819, 4505, 819, 2048)),
        # little memory: managed memory gives way to tasks
        (512 * MB, {}, (128, 128, 64, 192)),
    ],
)
def test_defaults_and_settings_of_the_parts(total, settings, parts):
    found = division(total, 1 if total < GB else 4, **settings)
    shown = (found.framework_bytes, found.task_bytes, found.network_bytes, found.managed_bytes)
    assert shown == pytest.approx(tuple(part * MB for part in parts), abs=2 * MB)


@pytest.mark.parametrize(
    ("total", "slots", "settings", "needed"),
    [
        (
            256 * MB,
            1,
            {},
            "a TaskManager with 1 slot needs 328 MB of memory: framework 128 MB, network 64 MB, managed 8",
        ),
        (1 * GB, 8, {}, "with 8 slots needs 1319 MB"),
        (
            8 * GB,
            4,
            {"managed_memory_bytes": 7 * GB},
            "managed 7168 MB, tasks 128 MB per slot; but it has 8192 MB (--m",
        ),
        (8 * GB, 4, {"framework_memory_bytes": 9 * GB}, "framework 9216 MB"),
        (8 * GB, 4, {"network_memory_min_bytes": 9 * GB}, "network 9216 MB"),
    ],
)
def test_parts_that_exceed_the_total_are_refused_with_each_of_them(total, slots, settings, needed):
    with pytest.raises(UsageError) as caught:
        division(total, slots, **settings)
    assert needed in str(caught.value)
    assert "raise taskmanager.memory, or lower the slots" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "total", "granted"),
    [(None, 8 * GB, 256 * MB), (None, 1 * GB, (1 * GB * 4 // 10) // 4), (64 * MB, 1 * GB, 64 * MB)],
)
def test_a_job_that_names_no_size_gets_what_a_small_slot_has(wanted, total, granted):
    found = division(total, 4, network_memory_min_bytes=0, framework_memory_bytes=0, network_memory_fraction=0.0)
    assert found.granted(wanted) == granted
    assert found.refusal(wanted) == ""


def test_a_job_that_wants_more_than_a_slot_has_is_refused_with_both_sizes_and_the_way_out():
    text = division(2 * GB, 4).refusal(512 * MB)
    assert text.startswith("the job wants 512 MB of managed memory per slot, but a slot has 204 MB (")
    for way in ("lower the job's managed_memory", "taskmanager.memory", "taskmanager.managed_memory", "fewer slots"):
        assert way in text
    assert division(2 * GB, 4).refusal(200 * MB) == ""


def test_the_limit_of_a_worker_bounds_its_managed_memory():
    found = division(8 * GB, 4, worker_memory_bytes=300 * MB)
    assert (found.granted(None), found.refusal(None)) == (172 * MB, "")
    assert found.refusal(200 * MB) == (
        "the job wants 200 MB of managed memory per slot, but a worker may use 300 MB, of which tasks need 128 MB"
        " (lower the job's managed_memory, or raise taskmanager.worker_memory)"
    )


@pytest.mark.parametrize(
    ("settings", "limit", "way"),
    [
        ({}, 1843 * MB, "with more --memory, fewer slots or --worker-memory)"),
        ({"worker_memory_bytes": 3 * GB}, 3072 * MB, "with a higher --worker-memory)"),
    ],
)
def test_a_worker_is_killed_above_its_slots_part_or_its_own_limit(settings, limit, way):
    found = division(8 * GB, 4, **settings)
    assert found.limit_bytes // MB == limit // MB
    assert found.excess(found.limit_bytes) == ""
    text = found.excess(4 * GB)
    assert text.startswith(f"it used 4096 MB of memory, its limit is {limit // MB} MB, and was killed (a function: let")
    for told in ("held until it returns", "state_backend=rocksdb", way):
        assert told in text


@pytest.mark.parametrize(
    ("held", "after_ms"), [(0, 256.0), (512 * MB, 128.0), (1000 * MB, 10.0), (1024 * MB, 10.0), (2 * GB, 10.0)]
)
def test_a_worker_is_checked_the_sooner_again_the_closer_it_is_to_its_limit(held, after_ms):
    assert division(8 * GB, 4, worker_memory_bytes=1 * GB).check_after_ms(held) == after_ms
