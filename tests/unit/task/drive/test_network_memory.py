"""A worker divides its network memory among its subtasks, and tells its TaskManager what they need."""

from penstock.rpc.messages import CancelTasks, NetworkNeed, NetworkShare, TaskState

#: Of two channels and their gate.
NEEDED = (2 * 2 + 8) << 20


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
    assert error.startswith("UsageError: the 2 input channels of this slot need 1 MB of network memory, but a slot is")
    assert "raise taskmanager.memory or taskmanager.network_memory_min" in error


def test_a_worker_tells_what_its_gates_need_and_that_they_keep_to_another_share(world, batch_of):
    w = world(sources=2, network_memory_bytes=100 << 10)
    w.deploy()
    w.settle()
    assert w.needs == [NetworkNeed(number=0, needed_bytes=NEEDED)]
    (sink,) = w.subtasks("sink")
    w.runtime("sink").handle(NetworkShare(number=1, total_bytes=NEEDED))
    assert w.needs[1:] == [NetworkNeed(number=1, needed_bytes=NEEDED)]
    for source in w.sources:
        source.script += [batch_of(*range(1_000))] * 10
    for subtask in w.subtasks("source"):
        for _ in range(50):
            subtask.step()
    w.transport.pump_all()
    queued = sink.gate.bytes_queued
    assert queued > 100 << 10, "nothing is shown"
    w.runtime("sink").handle(NetworkShare(number=2, total_bytes=100 << 10))
    w.runtime("sink").release()
    assert w.needs[2:] == [], "its gate holds more than the share"
    w.settle()
    w.runtime("sink").release()
    assert w.needs[2:] == [NetworkNeed(number=2, needed_bytes=NEEDED)]
    assert len(w.sink.seen) == 20_000
    w.broadcast(CancelTasks(job_id="job", generation=1))
    w.settle()
    w.runtime("sink").release()
    assert w.needs[3:] == [NetworkNeed(number=2, needed_bytes=0)]
