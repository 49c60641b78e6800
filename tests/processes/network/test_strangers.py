"""Who connects to a worker without being one of the job, and workers that others crowd out."""

import contextlib
import errno
import select
import selectors
import socket

import msgspec
import pytest
from tests.processes.network.test_connection import DEADLINE, Reader, connect, heard
from tests.support.waiting import wait_until
from tests.unit.network.conftest import KEY

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import Batch
from penstock.network.connection import NetworkLimits
from penstock.network.frame import (
    ChannelKey,
    FrameKind,
    Hello,
    OutgoingMessage,
    decode_hello,
    encode_message,
)
from penstock.network.handshake import NONCE_BYTES, Handshake
from penstock.network.sockets import Acceptor, Listener, dial


def require_exchange(net, planes):
    """Ten rows from worker a come to worker b."""
    job = net.Job(planes, JobSettings(buffer_timeout_ms=0))
    reader = Reader()
    output, gate = job.outputs(0, "a", ["b"]), job.gate(0, "b", ["a"], reader.data.set)
    job.start()
    output.batch(Batch(net.rows(10)))
    output.end()
    assert net.keys_of(reader.read(gate)) == list(range(10))


def hello_frame(hello):
    return encode_message(FrameKind.HELLO, payload=msgspec.msgpack.encode(hello))


def test_another_version_of_the_protocol_is_told_why_it_is_refused(planes):
    with connect(planes["a"].endpoint) as sock:
        sock.sendall(hello_frame(Hello("old", version=99)))
        (refused,) = heard(sock)
        assert refused.kind is FrameKind.RESET
        assert b"version 99" in bytes(refused.payload)
        assert heard(sock) == []


def stranger_of_another_job(own, answer):
    """A worker with another key does not believe the answer; let it prove all the same."""
    forger = Handshake("b", b"of another job", bytes(NONCE_BYTES), "a")
    forger._peer_nonce = answer.nonce
    return Hello("b", proof=forger._proof(ours=True))


def sends_back(own, answer):
    return Hello("b", proof=answer.proof)


def without_proof(own, answer):
    return Hello("b")


def another_worker(own, answer):
    """With the key, but for another name than the one it came with."""
    return Hello("c", proof=Handshake("c", KEY, bytes(NONCE_BYTES), "a")._proof(ours=True))


@pytest.mark.parametrize("forge", [stranger_of_another_job, sends_back, without_proof, another_worker])
def test_a_forged_worker_is_refused_and_disturbs_nobody(net, planes, forge):
    job = net.Job(planes, JobSettings(buffer_timeout_ms=0))
    reader = Reader()
    output, gate = job.outputs(0, "b", ["a"]), job.gate(0, "a", ["b"], reader.data.set)
    job.start()
    output.batch(Batch(net.rows(10)))
    output.flush()
    assert reader.data.wait(DEADLINE)
    with connect(planes["a"].endpoint) as sock:
        opening = Handshake("b", KEY, bytes(NONCE_BYTES), "a").opening()
        sock.sendall(opening)
        (answer,) = heard(sock)
        sock.sendall(hello_frame(forge(opening, decode_hello(answer))))
        (refused,) = heard(sock)
        assert refused.kind is FrameKind.RESET
        assert heard(sock) == []
    output.batch(Batch(net.rows(10, first=10)))
    output.end()
    assert net.keys_of(reader.read(gate)) == list(range(20))
    assert planes["a"].lost == planes["b"].lost == []


def test_a_greeting_that_was_listened_to_is_of_no_use_a_second_time(planes):
    """What a worker with the key has said once is said again to the same worker."""
    said = []
    with connect(planes["a"].endpoint) as sock:
        worker = Handshake("b", KEY, bytes(NONCE_BYTES), "a")
        said.append(worker.opening())
        sock.sendall(said[0])
        (answer,) = heard(sock)
        said.append(worker.take(answer))
        assert worker.done
        sock.sendall(said[1])
        wait_until(lambda: "b" in planes["a"]._peers, "the worker was let in")
    with connect(planes["a"].endpoint) as sock:
        sock.sendall(said[0])
        (answer,) = heard(sock)
        sock.sendall(said[1])
        (refused,) = heard(sock)
        assert b"did not prove" in bytes(refused.payload)


@pytest.mark.parametrize("limits", [NetworkLimits(handshake_deadline_ms=300)])
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(48), encode_message(FrameKind.CREDIT, backlog=1), bytes(40)],
)
def test_who_does_not_say_who_it_is_is_hung_up_on(planes, sent):
    with connect(planes["a"].endpoint) as sock:
        sock.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert heard(sock) == []
    assert planes["a"].lost == []


def test_a_message_that_would_take_memory_is_refused_before_the_proof(planes):
    head = bytearray(encode_message(FrameKind.HELLO, payload=b"x" * 100))
    head[28:32] = (1 << 30).to_bytes(4, "little")  # of a gigabyte in all
    with connect(planes["a"].endpoint) as sock:
        sock.sendall(head)
        with contextlib.suppress(ConnectionResetError):
            assert heard(sock) == []


def test_pieces_of_many_messages_are_not_collected_before_the_proof(planes):
    """Each head opens a message of a kilobyte on another channel."""
    heads = [
        OutgoingMessage(FrameKind.HELLO, ChannelKey(n, 0, 0, 0, 0), 0, 0, memoryview(bytes(1024))) for n in range(50)
    ]
    with connect(planes["a"].endpoint) as sock:
        (link,) = wait_until(lambda: list(planes["a"]._links), "the connection was accepted")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for head in heads:
                sock.sendall(head.next_frame(0)[0])
        wait_until(lambda: link not in planes["a"]._links, "the connection was closed")
    assert link.decoder._partials == {}


@pytest.mark.parametrize("limits", [NetworkLimits(max_unauthenticated=8)])
def test_strangers_in_any_number_do_not_keep_a_worker_out(net, planes):
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(planes["b"].endpoint)) for _ in range(40)]
        require_exchange(net, planes)
        assert heard(idle[0]) == [], "the oldest has gone"


def test_a_worker_that_is_hung_up_on_while_it_greets_dials_again(net, planes, monkeypatch):
    """As the oldest of many strangers is: its place is taken before it has proved anything."""
    hung_up, accept = [], Listener.accept

    def full(self):
        sock = accept(self)
        if sock is not None and len(hung_up) < 3:
            hung_up.append(sock.close())
            return None
        return sock

    monkeypatch.setattr(Listener, "accept", full)
    require_exchange(net, planes)
    assert len(hung_up) == 3
    assert planes["a"].lost == planes["b"].lost == []


def test_a_host_that_answers_nothing_is_lost_after_half_a_minute():
    listener = Listener("w", "tcp:127.0.0.1:0")
    with contextlib.closing(listener):
        dialled, _ = dial(listener.endpoint, lambda host: host)
        select.select([listener.sock], [], [], DEADLINE)
        with dialled, listener.accept() as accepted:
            for sock in (dialled, accepted):
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_a_worker_without_a_free_descriptor_lets_others_in_later(net, planes, monkeypatch):
    failed, accept = [], Listener.accept

    def full(self):
        if len(failed) < 3:
            failed.append(self)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(Listener, "accept", full)
    require_exchange(net, planes)
    assert len(failed) == 3
    assert planes["a"].lost == planes["b"].lost == []


def test_who_waits_while_nobody_can_be_let_in_is_not_looked_at_for_a_while(listen, monkeypatch):
    def full(_listener):
        raise OSError(errno.EMFILE, "Too many open files")

    clock, listener = ManualClock(), Listener("w", listen)
    with selectors.DefaultSelector() as selector:
        door = Acceptor([listener], selector, clock)
        with contextlib.closing(door), connect(door.endpoint):
            assert selector.select(DEADLINE)
            with monkeypatch.context() as broken:
                broken.setattr(Listener, "accept", full)
                assert list(door.accept_all(listener)) == []
            assert door.paused
            assert selector.select(0) == []
            clock.advance(99)
            door.resume()
            assert selector.select(0) == []
            clock.advance(1)
            door.resume()
            assert not door.paused
            assert selector.select(DEADLINE)
            (inside,) = door.accept_all(listener)
            inside.close()
