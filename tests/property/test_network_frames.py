"""Frames of many channels, cut and joined in any way, come back as the messages they were."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.network.frame import ChannelKey, FrameDecoder, FrameKind, OutgoingMessage

CHANNELS = [ChannelKey(1, 1, 0, source, 0) for source in range(3)]
MESSAGES = st.lists(
    st.tuples(st.sampled_from(CHANNELS), st.one_of(st.binary(max_size=40), st.integers(0, 200_000))), max_size=12
)


def payload_of(content):
    return content if isinstance(content, bytes) else bytes(content)


@given(MESSAGES, st.data(), st.sampled_from([7, 1000, 70_000]))
def test_round_trip_under_any_interleaving_and_any_chunking(contents, data, limit):
    waiting = {key: [] for key in CHANNELS}
    for sequence, (key, content) in enumerate(contents):
        size = limit * 50 if limit < 1000 else 200_000
        payload = payload_of(content)[:size]
        waiting[key].append(OutgoingMessage(FrameKind.DATA, key, sequence, sequence * 3, memoryview(payload)))
    expected = {key: [(m.sequence, m.backlog, bytes(m.payload)) for m in waiting[key]] for key in CHANNELS}
    wire = bytearray()
    while any(waiting.values()):
        key = data.draw(st.sampled_from([k for k in CHANNELS if waiting[k]]))
        message = waiting[key][0]
        for buffer in message.next_frame(limit):
            wire += buffer
        if message.done:
            waiting[key].pop(0)
    decoder = FrameDecoder()
    received = {key: [] for key in CHANNELS}
    position = 0
    while position < len(wire):
        chunk = data.draw(st.sampled_from([1, 13, 47, 48, 49, 4096, 65_536, 1 << 20]))
        if len(wire) - position > 500:
            chunk = max(chunk, 4096 if len(wire) - position > 5000 else 47)
        taken = 0
        for buffer in decoder.buffers():  # as recvmsg_into fills them
            piece = wire[position + taken : position + min(chunk, taken + len(buffer))]
            buffer[: len(piece)] = piece
            taken += len(piece)
        for message in decoder.received(taken):
            received[message.key].append((message.sequence, message.backlog, bytes(memoryview(message.payload))))
        position += taken
    assert received == expected
    assert decoder.idle
