"""A worker divides its network memory among its subtasks when they are deployed."""

from penstock.rpc.messages import TaskState


def test_channels_within_the_network_memory_of_a_worker_pass_all_rows(world, batch_of):
    w = world(sources=2, network_memory_bytes=100 << 10)
    w.deploy()
    w.settle()
    for number in range(200):
        w.sources[number % 2].script.append(batch_of(number))
    w.settle()
    assert sorted(w.sink.seen) == list(range(200))


def test_channels_that_do_not_fit_fail_their_subtasks_with_what_to_raise(world):
    w = world(sources=2, network_memory_bytes=10 << 10)
    w.deploy()
    w.settle()
    assert w.states("sink") == ["FAILED"]
    (error,) = [report.error for report in w.of(TaskState) if report.vertex_id == "sink"]
    assert error.startswith("UsageError: the 2 input channels of this slot need 1 MB of network memory, but a slot has")
    assert "raise taskmanager.memory or taskmanager.network_memory_min" in error
