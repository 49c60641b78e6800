"""Barriers that overtake, under arbitrary schedules: each row is in exactly one place of a checkpoint, in its order."""

from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_network_exchange import Exchange
from tests.support.depth import examples

from penstock.checkpoint.alignment import Abort, Alignment, Block, Overtake, Snapshot, StopCollecting, Unblock
from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark
from penstock.network.in_flight import OvertakenRows, decode_rows, encode_rows


class Sender:
    """A source subtask: where its checkpoints are in what it sent, and the rows that their barriers have overtaken."""

    def __init__(self, exchange, number):
        self.exchange, self.number, self.output = exchange, number, exchange.outputs[number]
        self.permitted = -1
        #: By checkpoint: rows sent to each target before it, and the overtaken ones.
        self.cuts = {}

    def trigger(self, checkpoint_id):
        barrier, rows = Barrier(checkpoint_id), OvertakenRows(checkpoint_id)
        self.cuts[checkpoint_id] = [rows_of(self.exchange.sent[self.number, t]) for t in range(2)], rows
        if checkpoint_id == self.permitted:
            self.output.overtake(barrier, rows)
        else:
            self.output.barrier_in_order(barrier, rows, lambda: None)

    def permit(self, checkpoint_id):
        self.permitted = checkpoint_id
        if checkpoint_id in self.cuts:
            self.output.overtake_late(self.cuts[checkpoint_id][1])


class Receiver:
    """A target subtask, which takes its cut as `task.checkpoint.barriers` does."""

    def __init__(self, exchange, number):
        self.exchange, self.number, self.gate = exchange, number, exchange.gates[number]
        self.alignment = Alignment(2)
        #: By checkpoint: rows processed of each source before it, and the overtaken ones.
        self.cuts = {}
        self.given_up = set()

    def poll(self):
        polled = self.gate.poll()
        if polled is None:
            return False
        channel, element = polled
        if isinstance(element, Batch):
            for n in element.data.column("n").to_pylist():
                self.exchange.received[self.exchange.source_of[n], self.number].append(("row", n))
        elif isinstance(element, Barrier):
            self.settle()
            self.execute(self.alignment.on_barrier(channel, element))
        return True

    def look(self):
        barrier = self.gate.take_barrier()
        if barrier is not None:
            self.settle()
            self.execute(self.alignment.on_received(barrier))

    def permit(self, checkpoint_id):
        self.settle()
        self.execute(self.alignment.permit(checkpoint_id))

    def abort(self, checkpoint_id):
        self.settle()
        self.given_up.add(checkpoint_id)
        self.execute(self.alignment.on_abort(checkpoint_id))

    def settle(self):
        for number, (_, rows) in self.cuts.items():
            if rows.complete:
                self.alignment.on_collected(number)

    def execute(self, commands):
        for command in commands:
            match command:
                case Block(channel):
                    self.gate.block(channel)
                case Unblock(channels):
                    for channel in channels:
                        self.gate.unblock(channel)
                case Snapshot(barrier):
                    self.cut(barrier)
                case Overtake(barrier, passed):
                    self.gate.overtake(self.cut(barrier), passed, ())
                case StopCollecting(number):
                    self.gate.stop_collecting()
                    self.given_up.add(number)
                case Abort(number, _):
                    self.given_up.add(number)

    def cut(self, barrier):
        rows = OvertakenRows(barrier.checkpoint_id)
        processed = [rows_of(self.exchange.received[s, self.number]) for s in range(2)]
        self.cuts[barrier.checkpoint_id] = processed, rows
        return rows


def rows_of(elements):
    return [n for kind, n in elements if kind == "row"]


def in_flight(rows, own):
    """The rows as they are read at a restore: by receiver, those queued there before those queued at the sender."""
    found = {}
    for of, queued in rows.groups(own):
        for batch in decode_rows(encode_rows(queued), combined=of.combined):
            found.setdefault((of.receiver, of.at_sender), []).extend(batch.data.column("n").to_pylist())
    return found


def check(exchange, senders, receivers):
    """Compare every checkpoint that nobody gave up with what was sent before it; return how many there were.

    A sender gives up a checkpoint whose barrier waits when the next one begins.
    """
    checked, newest = 0, max(senders[0].cuts, default=0)
    for number in senders[0].cuts:
        if not all(number in end.cuts for end in (*senders, *receivers)):
            continue
        waits = any(not sender.cuts[number][1].complete for sender in senders)
        if any(number in receiver.given_up for receiver in receivers) or (waits and number < newest):
            continue
        checked += 1
        for receiver in receivers:
            processed, rows = receiver.cuts[number]
            assert rows.complete
            here = in_flight(rows, receiver.number).get((receiver.number, False), [])
            for sender in senders:
                sent, overtaken = sender.cuts[number]
                assert overtaken.complete
                there = in_flight(overtaken, sender.number).get((receiver.number, True), [])
                own = [n for n in here if exchange.source_of[n] == sender.number]
                assert processed[sender.number] + own + there == sent[receiver.number]
    return checked


ACTIONS = ["batch"] * 6 + ["watermark", "flush", "look", "poll", "abort", "end"] + ["pump"] * 4 + ["checkpoint"] * 3
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.integers(0, 40)), min_size=30, max_size=150)


@examples(300)
@given(STEPS, st.sampled_from([0, 50]), st.sampled_from([100, 700]))
def test_any_schedule(steps, timeout_ms, buffer_size):
    exchange = Exchange(timeout_ms, buffer_size, overtakes="edge")
    senders = [Sender(exchange, n) for n in range(2)]
    receivers = [Receiver(exchange, n) for n in range(2)]
    newest, ended = 0, set()
    for number, (what, subtask, amount) in enumerate(steps):
        if what == "batch" and subtask not in ended:
            exchange.batch(subtask, amount, width=amount * (amount % 7))
        elif what == "watermark" and subtask not in ended:
            exchange.event(subtask, Watermark(number))
        elif what == "end" and amount > 35 and subtask not in ended:
            ended.add(subtask)
            exchange.event(subtask, EndOfInput())
        elif what == "flush":
            exchange.clock.advance(amount)
            exchange.outputs[subtask].flush_due(exchange.clock.monotonic_ms())
        elif what == "checkpoint":
            newest = checkpoint(newest, senders[subtask], senders, receivers, amount)
        elif what == "look":
            receivers[subtask].look()
        elif what == "poll":
            receivers[subtask].poll()
        elif what == "abort" and amount > 30:
            receivers[subtask].abort(newest)
        elif exchange.transport.ready_links():
            links = exchange.transport.ready_links()
            exchange.transport.pump(links[amount % len(links)])
    finish(exchange, senders, receivers, newest)
    check(exchange, senders, receivers)


def checkpoint(newest, sender, senders, receivers, amount):
    """Trigger the newest checkpoint at one more sender or begin another one, or let it overtake somewhere."""
    if amount % 4 == 0:
        end = (*senders, *receivers)[amount // 4 % 4]
        end.permit(newest)
    elif newest not in sender.cuts and newest:
        sender.trigger(newest)
    elif all(newest in other.cuts for other in senders) or not newest:
        newest += 1
        if amount % 2:
            sender.permit(newest)
        sender.trigger(newest)
    return newest


def finish(exchange, senders, receivers, newest):
    """Let the newest checkpoint end everywhere."""
    for sender in senders:
        sender.output.flush()
        if newest and newest not in sender.cuts:
            sender.trigger(newest)
    moved = True
    while moved:
        moved = exchange.transport.pump_all() > 0
        for receiver in receivers:
            receiver.look()
            moved |= receiver.poll()


def test_a_checkpoint_overtakes_at_both_ends_without_a_row_being_read():
    """Both queues of a channel are full and the receiver reads nothing: the barrier arrives all the same."""
    exchange = Exchange(0, 100, overtakes="edge")
    senders = [Sender(exchange, n) for n in range(2)]
    receivers = [Receiver(exchange, n) for n in range(2)]
    for _ in range(20):
        for source in range(2):
            exchange.batch(source, 10, width=10)
        exchange.transport.pump_all()
    for end in (*senders, *receivers):
        end.permit(1)
    for sender in senders:
        sender.trigger(1)
    exchange.transport.pump_all()
    for receiver in receivers:
        receiver.look()
        assert receiver.cuts[1][1].complete
        assert receiver.cuts[1][1].received
    assert all(sender.cuts[1][1].sent for sender in senders)
    assert check(exchange, senders, receivers) == 1


def test_a_barrier_that_waits_in_order_overtakes_when_it_may():
    exchange = Exchange(0, 100, overtakes="edge")
    senders = [Sender(exchange, n) for n in range(2)]
    receivers = [Receiver(exchange, n) for n in range(2)]
    for _ in range(20):
        exchange.batch(0, 10, width=10)
    exchange.transport.pump_all()
    for sender in senders:
        sender.trigger(1)
    exchange.transport.pump_all()
    assert not senders[0].cuts[1][1].complete
    assert senders[1].cuts[1][1].complete
    for receiver in receivers:
        receiver.look()
        assert not receiver.cuts
    for end in (*senders, *receivers):
        end.permit(1)
    exchange.transport.pump_all()
    for receiver in receivers:
        receiver.look()
    assert senders[0].cuts[1][1].complete
    assert senders[0].cuts[1][1].sent
    assert check(exchange, senders, receivers) == 1
