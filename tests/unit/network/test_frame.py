"""Frames: what goes in comes out, and nonsense is refused."""

import struct

import pytest

from penstock.core.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Barrier,
    BarrierKind,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from penstock.graph.task_deployment import ChannelId
from penstock.network.frame import (
    HEADER_BYTES,
    ChannelKey,
    FrameDecoder,
    FrameError,
    FrameKind,
    OutgoingMessage,
    decode_event,
    encode_event,
    encode_message,
)

KEY = ChannelKey.of("job", ChannelId(1, 2, 3, 4))
OTHER = ChannelKey.of("job", ChannelId(1, 2, 9, 4))


def frames_of(message, limit):
    frames = []
    while not frames or not message.done:
        frames.append(b"".join(bytes(b) for b in message.next_frame(limit)))
    return frames


def data(key, payload, sequence=0):
    return OutgoingMessage(FrameKind.DATA, key, sequence, 77, memoryview(payload))


@pytest.mark.parametrize(
    "event",
    [
        Watermark(0),
        Watermark(MIN_TIMESTAMP),
        Watermark(MAX_TIMESTAMP),
        WatermarkStatus(idle=True),
        WatermarkStatus(idle=False),
        Barrier(7),
        Barrier(1 << 40, BarrierKind.DRAIN),
        EndOfInput(),
    ],
)
def test_events_come_back_equal(event):
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91\x09", b"\x90", b"\x93\x02\x01\xa3bad", b"\x91\x00"])
def test_a_payload_that_is_no_event_is_refused(payload):
    with pytest.raises(FrameError):
        decode_event(payload)


def test_a_message_without_payload_is_one_frame():
    assert len(frames_of(data(KEY, b""), 10)) == 1
    (message,) = FrameDecoder().feed(encode_message(FrameKind.CREDIT, KEY, backlog=123))
    assert (message.kind, message.key, message.backlog, bytes(message.payload)) == (FrameKind.CREDIT, KEY, 123, b"")


def test_a_large_message_spans_frames_and_is_received_into_one_piece_of_memory():
    payload = bytes(range(256)) * 1000
    frames = frames_of(data(KEY, payload, 5), 100_000)
    assert [len(f) - HEADER_BYTES for f in frames] == [100_000, 100_000, 56_000]
    decoder = FrameDecoder()
    messages = [m for frame in frames for m in decoder.feed(frame)]
    assert [(m.sequence, m.backlog, bytes(memoryview(m.payload))) for m in messages] == [(5, 77, payload)]
    assert decoder.idle


def test_frames_of_two_channels_may_alternate():
    one, two = frames_of(data(KEY, b"a" * 50), 20), frames_of(data(OTHER, b"b" * 50), 20)
    decoder = FrameDecoder()
    mixed = [frame for pair in zip(one, two, strict=True) for frame in pair]
    messages = decoder.feed(b"".join(mixed))
    assert {m.key: bytes(m.payload) for m in messages} == {KEY: b"a" * 50, OTHER: b"b" * 50}


def test_an_unknown_kind_is_refused():
    frame = bytearray(encode_message(FrameKind.CREDIT, KEY))
    frame[4] = 99
    with pytest.raises(FrameError, match="kind 99"):
        FrameDecoder().feed(frame)


def test_a_message_above_the_limit_is_refused_before_memory_is_taken():
    frame = bytearray(encode_message(FrameKind.DATA, KEY, payload=b"x" * 10))
    struct.pack_into("<I", frame, 28, 4_000_000_000)
    with pytest.raises(FrameError, match="4000000000"):
        FrameDecoder().feed(frame)


def test_a_second_message_inside_an_unfinished_one_is_refused():
    decoder = FrameDecoder()
    decoder.feed(frames_of(data(KEY, b"a" * 50, 0), 20)[0])
    with pytest.raises(FrameError, match="inside message 0"):
        decoder.feed(frames_of(data(KEY, b"a" * 50, 1), 20)[0])


def test_jobs_and_epochs_have_channels_of_their_own():
    channel = ChannelId(1, 2, 3, 4)
    assert ChannelKey.of("job", channel) != ChannelKey.of("job2", channel)
    assert ChannelKey.of("job", channel) != ChannelKey.of("job", ChannelId(1, 2, 3, 5))


def hello(payload=b"who", **changed):
    return encode_message(FrameKind.HELLO, payload=payload, **changed)


def test_before_the_proof_greetings_come_one_at_a_time_and_behind_it_whatever_had_come():
    decoder = FrameDecoder(handshake_bytes=100)
    sent = hello() + b"".join(frames_of(data(KEY, bytes(5000)), 2000))
    buffer = decoder.buffers()[0]
    buffer[: len(sent)] = sent
    assert [m.kind for m in decoder.received(len(sent))] == [FrameKind.HELLO]
    decoder.trust()
    (message,) = decoder.received(0)
    assert (message.kind, message.size) == (FrameKind.DATA, 5000)
    assert decoder.idle


@pytest.mark.parametrize(
    "sent",
    [
        encode_message(FrameKind.CREDIT, backlog=1),
        encode_message(FrameKind.HELLO, KEY),
        hello(bytes(101)),
        hello(b"in pieces")[:HEADER_BYTES].replace(struct.pack("<I", 9), struct.pack("<I", 0), 1),
    ],
    ids=["kind", "channel", "size", "piece"],
)
def test_nothing_else_is_kept_for_one_who_has_proved_nothing(sent):
    FrameDecoder().feed(sent)  # a worker may send it
    decoder = FrameDecoder(handshake_bytes=100)
    with pytest.raises(FrameError, match="not proved"):
        decoder.feed(sent)
    assert not decoder._partials
