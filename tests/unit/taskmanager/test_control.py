"""Frames on the control socket."""

import asyncio
import socket
import struct
import threading

import pytest

from penstock.taskmanager.control_sockets import MAX_FRAME_BYTES, ControlClosedError, WorkerControl, frame, read_frame


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
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        found = [await read_frame(reader) for _ in range(200)]
        writer.close()
        return found

    for sender in senders:
        sender.start()
    found = asyncio.run(read_all())
    for sender in senders:
        sender.join()
    assert all(len(set(data)) == 1 and len(data) == 1000 + data[0] for data in found)


async def test_the_asyncio_side_sees_the_end_as_none():
    reader = asyncio.StreamReader()
    reader.feed_data(frame(b"one") + b"\x05\x00")
    reader.feed_eof()
    assert await read_frame(reader) == b"one"
    assert await read_frame(reader) is None
