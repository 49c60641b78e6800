"""The network memory of a TaskManager: guaranteed parts, and loans of the shared part that are granted and returned."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.rpc.messages import NetworkNeed
from penstock.taskmanager.network_pool import NetworkPool

MB = 1 << 20


def told(shares):
    return [(worker_id, share.number, share.total_bytes) for worker_id, share in shares]


def test_half_is_guaranteed_in_equal_parts_and_all_of_it_to_a_single_slot():
    parts = lambda total, slots: (NetworkPool(total, slots).guaranteed_bytes, NetworkPool(total, slots).shared_bytes)
    assert parts(80, 4) == (10, 40)
    assert parts(81, 4) == (10, 41)
    assert parts(80, 1) == (80, 0)


def test_a_worker_is_lent_what_it_needs_and_a_second_one_gets_its_proportion_once_the_first_has_returned_it():
    pool = NetworkPool(80, 4)
    assert told(pool.needs("a", NetworkNeed(number=0, needed_bytes=10))) == []
    assert told(pool.needs("a", NetworkNeed(number=0, needed_bytes=50))) == [("a", 1, 50)]
    assert pool.lent_bytes == 40
    assert told(pool.needs("b", NetworkNeed(number=0, needed_bytes=50))) == [("a", 2, 30)]
    # it keeps to an earlier share only
    assert told(pool.needs("a", NetworkNeed(number=1, needed_bytes=50))) == []
    assert told(pool.needs("a", NetworkNeed(number=2, needed_bytes=50))) == [("b", 1, 30)]
    assert pool.lent_bytes == 40
    assert told(pool.ended("a")) == [("b", 2, 50)]
    assert told(pool.ended("b")) == []
    assert pool.lent_bytes == 0


def test_a_worker_that_needs_less_returns_the_rest():
    pool = NetworkPool(80, 4)
    pool.needs("a", NetworkNeed(number=0, needed_bytes=90))
    assert told(pool.needs("a", NetworkNeed(number=1, needed_bytes=0))) == [("a", 2, 10)]
    pool.needs("a", NetworkNeed(number=2, needed_bytes=0))
    assert pool.lent_bytes == 0


WORKERS = ("a", "b", "c", "d")
KINDS = st.sampled_from(["need", "deliver", "return", "hear", "end"])
STEPS = st.lists(st.tuples(KINDS, st.sampled_from(WORKERS), st.integers(0, 90)), max_size=60)


class Exchange:
    """A pool, its workers, and the messages on their way in both directions."""

    def __init__(self):
        self.pool = NetworkPool(81, 4)
        self.down = {name: [] for name in WORKERS}
        self.up = {name: [] for name in WORKERS}
        #: The most that a worker may hold, and the newest share that it has got.
        self.held = dict.fromkeys(WORKERS, self.pool.guaranteed_bytes)
        self.share = dict.fromkeys(WORKERS, (0, self.pool.guaranteed_bytes))
        self.needed, self.kept = dict.fromkeys(WORKERS, 0), dict.fromkeys(WORKERS, 0)

    def sent(self, shares):
        for name, share in shares:
            self.down[name].append(share)

    def need(self, name, size):
        self.needed[name] = size
        self.up[name].append(NetworkNeed(number=self.kept[name], needed_bytes=size))

    def deliver(self, name, _=0):
        if self.down[name]:
            share = self.down[name].pop(0)
            self.share[name] = share.number, share.total_bytes
            self.held[name] = max(self.held[name], share.total_bytes)

    def returns(self, name, _=0):
        self.kept[name], self.held[name] = self.share[name]
        self.up[name].append(NetworkNeed(number=self.kept[name], needed_bytes=self.needed[name]))

    def hear(self, name, _=0):
        if self.up[name]:
            self.sent(self.pool.needs(name, self.up[name].pop(0)))

    def end(self, name, _=0):
        self.down[name], self.up[name] = [], []
        self.share[name] = 0, self.pool.guaranteed_bytes
        self.held[name], self.needed[name], self.kept[name] = self.pool.guaranteed_bytes, 0, 0
        self.sent(self.pool.ended(name))


@given(STEPS)
def test_all_workers_stay_within_the_network_memory_and_get_their_proportion_in_the_end(steps):
    world = Exchange()
    for what, name, size in steps:
        getattr(world, "returns" if what == "return" else what)(name, size)
        assert sum(world.held.values()) <= 81
    for _ in range(8):
        for name in WORKERS:
            world.hear(name)
            while world.down[name]:
                world.deliver(name)
            world.returns(name)
            while world.up[name]:
                world.hear(name)
        assert sum(world.held.values()) <= 81
    wanted = {name: max(0, size - 10) for name, size in world.needed.items()}
    total = sum(wanted.values())
    fair = {name: size if total <= 41 else 41 * size // total for name, size in wanted.items()}
    assert {name: size - 10 for name, (_, size) in world.share.items()} == fair
