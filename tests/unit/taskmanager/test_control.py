"""Frames on the control socket."""

import asyncio
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from penstock.taskmanager.worker_control import (
    MAX_FRAME_BYTES,
    ControlClosedError,
    FrameReader,
    WorkerControl,
    WorkerProcess,
    frame,
    stops,
)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    control = WorkerControl(theirs)
    yield ours, control
    ours.close()
    control.close()


def test_a_message_in_many_pieces_is_one_message(pair):
    ours, control = pair
    data = bytes(range(256)) * 10
    whole = frame(data) + frame(b"")
    sender = threading.Thread(target=lambda: [ours.sendall(whole[i : i + 7]) for i in range(0, len(whole), 7)])
    sender.start()
    assert control.receive() == data
    assert control.receive() == b""
    sender.join()


def test_the_end_of_the_socket_is_an_error_also_within_a_message(pair):
    ours, control = pair
    ours.sendall(frame(b"abcdef")[:-2])
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(ControlClosedError):
        control.receive()


def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated(pair):
    ours, control = pair
    ours.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
    with pytest.raises(ControlClosedError, match="control frame"):
        control.receive()


def test_sending_to_a_closed_supervisor_is_an_error(pair):
    ours, control = pair
    ours.close()
    with pytest.raises(ControlClosedError, match="cannot send a report to the supervisor"):
        control.send(b"x" * 1_000_000)


def test_messages_of_many_threads_do_not_mix(pair):
    ours, control = pair

    def send(number):
        for _ in range(50):
            control.send(bytes([number]) * (1000 + number))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(4)]

    async def read_all():
        found, all_read = [], asyncio.Event()

        def add(data):
            found.append(data)
            if len(found) == 200:
                all_read.set()

        ours.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: FrameReader(add), sock=ours)
        await asyncio.wait_for(all_read.wait(), 60)
        transport.close()
        return found

    for sender in senders:
        sender.start()
    found = asyncio.run(read_all())
    for sender in senders:
        sender.join()
    assert all(len(set(data)) == 1 and len(data) == 1000 + data[0] for data in found)


def test_messages_that_came_together_are_returned_one_by_one(pair):
    ours, control = pair
    ours.sendall(frame(b"first") + frame(b"second") + frame(b"third")[:-1])
    assert [control.receive(), control.receive()] == [b"first", b"second"]
    ours.sendall(b"d")
    assert control.receive() == b"third"


async def test_commands_of_one_turn_of_the_event_loop_are_written_together():
    worker = WorkerProcess(SimpleNamespace(worker_id="w", lease_ms=1_000), None, None, None, lambda _: None)
    theirs = worker.open_control()
    control = WorkerControl(theirs)
    worker.send(b"before it is open")
    assert await asyncio.to_thread(control.receive) == b"before it is open"
    written, write = [], worker._writer.write
    worker._writer = SimpleNamespace(
        write=lambda data: (written.append(data), write(data)), get_write_buffer_size=lambda: 0
    )
    worker.send(b"permit")
    worker.send(b"trigger")
    assert [await asyncio.to_thread(control.receive) for _ in range(2)] == [b"permit", b"trigger"]
    assert written == [frame(b"permit") + frame(b"trigger")]
    control.close()
    await worker.ended()


async def test_the_asyncio_side_gets_whole_messages_from_any_pieces():
    found = []
    reader = FrameReader(found.append)
    data = frame(b"one") + frame(b"") + frame(b"three")
    for start in range(0, len(data), 5):
        reader.data_received(data[start : start + 5])
    assert found == [b"one", b"", b"three"]
    reader.data_received(frame(b"4") + frame(b"5"))
    assert found[3:] == [b"4", b"5"]


async def test_the_asyncio_side_counts_an_incomplete_message_as_the_end():
    found = []
    reader = FrameReader(found.append)
    reader.data_received(frame(b"one") + b"\x05\x00")
    assert not reader.ended.done()
    reader.eof_received()
    assert found == [b"one"]
    assert reader.ended.done()


async def test_the_asyncio_side_ends_at_a_length_beyond_the_limit():
    found = []
    reader = FrameReader(found.append)
    reader.data_received(frame(b"one") + struct.pack("<I", MAX_FRAME_BYTES + 1) + b"x")
    assert found == [b"one"]
    assert reader.ended.done()


@pytest.mark.parametrize(("stop_ms", "end_ms", "stopped"), [(40, 90, True), (90, 40, False), (60_000, 60_000, False)])
async def test_the_stop_of_a_worker_is_waited_for_until_its_end_or_for_a_while(stop_ms, end_ms, stopped):
    slept = []
    passed = lambda at_ms: sum(slept) * 1000 >= at_ms

    async def ends_within(seconds):
        slept.append(seconds)
        return passed(end_ms)

    assert await stops(lambda: passed(stop_ms), ends_within) == stopped
    assert sum(slept) < 15
    assert max(slept) <= 0.01
