"""Where a TaskManager's total memory comes from: the setting, the container's limit, the host."""

import pytest

from penstock.config.config_file import TaskManagerSettings
from penstock.taskmanager.host_memory import container_limit, total_memory

GB = 1 << 30
V1_UNLIMITED = "9223372036854771712\n"


@pytest.fixture
def host(tmp_path):
    def make(groups, limits):
        for name, text in {"proc/self/cgroup": groups, **limits}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("groups", "limits", "limit"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{2 * GB}\n"}, 2 * GB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, None),
        # the lowest of the group and those above it
        (
            "0::/pod/own\n",
            {"sys/fs/cgroup/pod/own/memory.max": "max\n", "sys/fs/cgroup/pod/memory.max": f"{3 * GB}\n"},
            3 * GB,
        ),
        # a container that sees its own group as the top, and the host's path
        ("5:cpu:/x\n4:memory:/docker/a:b\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GB}\n"}, GB),
        ("4:memory:/a\n0::/\n", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{GB}\n"}, GB),
        ("5:cpu:/\n", {}, None),
    ],
)
def test_the_limit_of_a_container_is_that_of_its_control_groups(host, groups, limits, limit):
    assert container_limit(host(groups, limits)) == limit


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert container_limit(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "limit", "total", "origin"),
    [
        ({"memory_bytes": 3 * GB, "host_taskmanagers": 2}, f"{2 * GB}\n", 3 * GB, "taskmanager.memory"),
        ({}, f"{2 * GB}\n", 2 * GB, "the container's limit"),
        ({"host_taskmanagers": 2}, f"{2 * GB}\n", GB, "the container's limit, shared by 2 TaskManagers"),
        ({}, V1_UNLIMITED, 8 * GB, "80 % of the host's memory"),
        ({"host_taskmanagers": 4}, "max\n", 2 * GB, "80 % of the host's memory, shared by 4 TaskManagers"),
    ],
)
def test_a_total_that_is_set_wins_over_the_container_and_that_over_the_host(host, settings, limit, total, origin):
    root = host("0::/\n", {"sys/fs/cgroup/memory.max": limit})
    found = total_memory(TaskManagerSettings(**settings), 10 * GB, root)
    assert (found.size_bytes, found.origin) == (total, origin)
