"""Real sockets: two workers in one process and in two, both transports, and every way to lose a peer."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from penstock.config.settings import JobSettings
from penstock.core.clock import SystemClock
from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark
from penstock.core.errors import UsageError
from penstock.network.connection import NetworkLimits, WorkerNetwork
from penstock.network.frame import (
    FrameDecoder,
)
from penstock.network.sockets import Listener
from penstock.network.subpartition import ConnectionLostError

DEADLINE = 20


class Reader:
    """Polls a gate as a task would: until the end of all channels."""

    def __init__(self):
        self.data = threading.Event()

    def read(self, gate, until=lambda element: False):
        found, ends = [], 0
        while ends < gate.channel_count:
            element = gate.poll()
            if element is None:
                assert self.data.wait(DEADLINE), "nothing arrived"
                self.data.clear()
                continue
            found.append(element)
            ends += isinstance(element[1], EndOfInput)
            if until(element[1]):
                break
        return found


def send(output, batches, room):
    for batch in batches:
        while not output.available:
            assert room.wait(DEADLINE), "no room"
            room.clear()
        output.batch(Batch(batch))


@pytest.mark.parametrize("source", ["a", "b"])
def test_an_exchange_between_two_workers(net, planes, source):
    target = "b" if source == "a" else "a"
    job = net.Job(planes, JobSettings(buffer_timeout_ms=0, buffer_size_bytes=20_000))
    reader, room = Reader(), threading.Event()
    output = job.outputs(0, source, [target], wake=room.set)
    gate = job.gate(0, target, [source], reader.data.set)
    job.start()
    sender = threading.Thread(
        target=lambda: (
            send(output, [net.rows(1000, first=1000 * n) for n in range(100)], room),
            output.watermark(Watermark(1)),
            output.barrier(Barrier(1)),
            output.end(),
        )
    )
    sender.start()
    found = reader.read(gate)
    sender.join(DEADLINE)
    assert net.keys_of(found) == list(range(100_000))
    assert [e for _, e in found[-3:]] == [Watermark(1), Barrier(1), EndOfInput()]
    assert planes["a"].lost == planes["b"].lost == []


def test_a_message_of_many_megabytes(net, planes):
    job = net.Job(planes, JobSettings(buffer_timeout_ms=0))
    reader = Reader()
    output = job.outputs(0, "a", ["b"])
    gate = job.gate(0, "b", ["a"], reader.data.set)
    job.start()
    output.batch(Batch(net.rows(1, text="x" * 20_000_000)))
    output.end()
    (_, batch), _ = reader.read(gate)
    assert len(batch.data.column("v")[0].as_py()) == 20_000_000


def test_a_closed_peer_fails_the_tasks_and_is_reported(net, planes):
    job = net.Job(planes, JobSettings(buffer_timeout_ms=0))
    reader, room = Reader(), threading.Event()
    output = job.outputs(0, "a", ["b"], wake=room.set)
    gate = job.gate(0, "b", ["a"], reader.data.set)
    job.start()
    output.watermark(Watermark(1))
    reader.read(gate, until=lambda e: e == Watermark(1))
    link = next(iter(planes["b"]._links))
    link.sock.shutdown(socket.SHUT_RDWR)  # as if the process had died
    assert room.wait(DEADLINE)
    with pytest.raises(ConnectionLostError, match="worker b"):
        output.batch(Batch(net.rows(1)))
    assert reader.data.wait(DEADLINE)
    with pytest.raises(ConnectionLostError, match="worker a"):
        reader.read(gate)
    wait_until(lambda: planes["a"].lost and planes["b"].lost, "both ends have lost the connection")
    assert [p for p, _ in planes["a"].lost + planes["b"].lost] == ["b", "a"]


def test_a_new_epoch_connects_again_after_a_loss(net, planes):
    settings = JobSettings(buffer_timeout_ms=0)
    for epoch in (1, 2, 3):
        job = net.Job(planes, settings, epoch=epoch)
        reader = Reader()
        output = job.outputs(0, "b", ["a"])
        gate = job.gate(0, "a", ["b"], reader.data.set)
        job.start()
        output.batch(Batch(net.rows(10, first=epoch)))
        output.barrier(Barrier(epoch))
        found = reader.read(gate, until=lambda e: isinstance(e, Barrier))
        assert net.keys_of(found) == list(range(epoch, epoch + 10))
        for link in list(planes["a"]._links):
            link.sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: not planes["a"]._peers and not planes["b"]._peers, "no peers")
        for plane in planes.values():
            plane.release("job")


@pytest.mark.parametrize("limits", [NetworkLimits(connect_deadline_ms=100)])
def test_a_worker_that_cannot_be_reached_is_a_lost_connection(net, planes, listen):
    gone = WorkerNetwork("c", listen, SystemClock())
    job = net.Job({**planes, "c": gone, "A": gone}, JobSettings())
    reader = Reader()
    dials = job.gate(0, "a", ["c"], reader.data.set)
    gone.close()
    planes["a"].start_channels("job")
    assert reader.data.wait(DEADLINE)
    with pytest.raises(ConnectionLostError, match="cannot be reached"):
        dials.poll()


@pytest.mark.parametrize("limits", [NetworkLimits(accept_deadline_ms=100)])
def test_a_worker_that_does_not_dial_is_a_lost_connection(net, planes):
    job = net.Job(planes, JobSettings())
    reader = Reader()
    waits = job.gate(0, "b", ["a"], reader.data.set)
    planes["b"].start_channels("job")
    assert reader.data.wait(DEADLINE)
    with pytest.raises(ConnectionLostError, match="did not connect in time"):
        waits.poll()


def connect(endpoint):
    kind, _, rest = endpoint.partition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.settimeout(DEADLINE)
    return sock


def heard(sock):
    """The next messages, none at the end of the connection."""
    decoder = FrameDecoder()
    while data := sock.recv(1000):
        if messages := decoder.feed(data):
            return messages
    return []


def test_a_long_folder_falls_back_to_a_short_one(tmp_path):
    folder = tmp_path / ("x" * 100)
    listener = Listener("worker-1", f"unix:{folder}")
    path = listener.endpoint.removeprefix("unix:")
    assert len(path) < 100
    listener.close()
    assert not Path(path).parent.exists()


def test_a_worker_id_that_is_no_file_name_is_no_problem(tmp_path):
    listener = Listener("tm/0:slot 1", f"unix:{tmp_path}")
    assert Path(listener.endpoint.removeprefix("unix:")).exists()
    listener.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["nonsense", "unix:", "tcp:localhost", "tcp:host:port"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(UsageError):
        Listener("w", address)


def test_close_ends_the_thread_and_removes_the_socket_file(tmp_path):
    plane = WorkerNetwork("w", f"unix:{tmp_path}", SystemClock())
    plane.close()
    plane.close()
    assert not plane._thread.is_alive()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("pattern", ["forward", "keyed"])
def test_two_processes_exchange_every_row_exactly_once(pattern, listen):
    script = Path(__file__).parents[2] / "bench" / "network_exchange.py"
    rows = 100_000
    options = [
        "--rows",
        str(rows),
        "--batch",
        "1000",
        "--pattern",
        pattern,
        "--check",
        "--listen",
        listen[:4].strip(":"),
    ]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    made = [n for _ in range(1 if pattern == "forward" else 2) for n in range(rows)]
    distinct = 64_000  # the script makes 64 batches and sends them again and again
    assert report["rows"] == len(made)
    assert report["key_sum"] == sum(n % distinct for n in made)
    assert report["lost"] == []
