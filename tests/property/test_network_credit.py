"""Credit is neither lost nor invented, whatever is sent and consumed in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.network.credit import GateCredit, SenderCredit

CHANNELS, EXCLUSIVE = 3, (100, 40, 100)


class World:
    """Senders with queues, a gate, and both directions in flight."""

    def __init__(self, floating):
        self.gate = GateCredit(EXCLUSIVE, floating)
        self.floating = floating
        #: Its share of floating bytes was made smaller.
        self.reduced = False
        self.senders = [SenderCredit(own) for own in EXCLUSIVE]
        self.waiting = [[] for _ in range(CHANNELS)]
        self.data = [[] for _ in range(CHANNELS)]
        self.queued = [[] for _ in range(CHANNELS)]
        self.grants = [[(own, 0)] for own in EXCLUSIVE]

    def put(self, channel, size):
        self.waiting[channel].append(size)

    def send(self, channel):
        waiting = self.waiting[channel]
        if waiting and self.senders[channel].covers(waiting[0]):
            cost = self.senders[channel].spend(waiting.pop(0))
            self.data[channel].append((cost, sum(waiting)))

    def arrive(self, channel):
        if self.data[channel]:
            cost, backlog = self.data[channel].pop(0)
            granted = self.gate.on_data(channel, cost, backlog)
            self.queued[channel].append(cost)
            if granted:
                self.grants[channel].append((granted, 0))

    def consume(self, channel):
        if self.queued[channel]:
            for target, amount in self.gate.on_consumed(channel, self.queued[channel].pop(0)):
                self.grants[target].append((amount, 0))

    def resize(self, window):
        for channel, amount, own in self.gate.resize(window):
            self.grants[channel].append((amount, own))

    def share(self, floating):
        self.reduced |= floating < self.floating
        self.floating = floating
        for channel, amount in self.gate.share(floating):
            self.grants[channel].append((amount, 0))

    def deliver(self, channel):
        if self.grants[channel]:
            amount, window = self.grants[channel].pop(0)
            self.senders[channel].grant(amount)
            self.senders[channel].window = window or self.senders[channel].window

    def check(self):
        gate = self.gate
        assert gate.floating_free + sum(gate.floating_held) == self.floating
        assert gate.floating_free >= 0 or self.reduced
        for c in range(CHANNELS):
            granted = sum(amount for amount, _ in self.grants[c])
            at_sender = self.senders[c].balance + granted + sum(cost for cost, _ in self.data[c])
            assert self.senders[c].balance >= 0
            assert at_sender == gate.outstanding[c]
            assert at_sender + sum(self.queued[c]) + gate.unannounced[c] == EXCLUSIVE[c] + gate.floating_held[c]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "send", "arrive", "consume", "deliver", "resize", "share"]),
        st.integers(0, CHANNELS - 1),
        st.integers(1, 350),
    ),
    max_size=200,
)


@given(STEPS, st.sampled_from([0, 1, 150, 1000]))
def test_credit_is_conserved_and_everything_arrives_in_the_end(steps, floating):
    world = World(floating)
    for what, channel, size in steps:
        if what == "put":
            world.put(channel, size)
        elif what == "resize":
            world.resize(size // 3)
        elif what == "share":
            world.share(size - 1)
        else:
            getattr(world, what)(channel)
        world.check()
    for _ in range(10 * len(steps) + 10):
        for what in (world.send, world.arrive, world.consume, world.deliver):
            for channel in range(CHANNELS):
                what(channel)
        world.check()
    assert world.waiting == [[], [], []]
    assert all(not queue for queue in world.data + world.queued)
    assert world.gate.floating_free >= 0, "what is above a smaller share has not been returned"


@given(STEPS, st.integers(1, 99))
def test_a_window_bounds_the_bytes_in_flight_beyond_one_message(steps, window):
    world = World(floating=0)
    world.resize(window)
    for what, channel, size in steps:
        if what == "put":
            world.put(channel, size)
        elif what not in ("resize", "share"):
            getattr(world, what)(channel)
        for c in range(CHANNELS):
            in_flight = [cost for cost, _ in world.data[c]] + world.queued[c]
            bounded = world.senders[c].window < EXCLUSIVE[c]
            assert not bounded or sum(in_flight) <= max(window, *in_flight, 0)
