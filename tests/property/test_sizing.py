"""A cluster whose TaskManagers come late and die: never outside its bounds, none in use is released, no job starves."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.sizing import Bounds, ClusterSample, Sizer

TIMEOUT_S = 5
LATE_S = 3


class Cluster:
    """TaskManagers that take some seconds to come, and jobs that hold slots, a number each."""

    def __init__(self, bounds):
        self.bounds, self.sizer, self.names = bounds, Sizer(bounds), itertools.count()
        self.coming, self.used, self.waiting = [], {}, []

    def second(self, now_s):
        """Let a second pass: those that come are there, who waits is served, then the decider is asked."""
        bounds = self.bounds
        for name in [name for name, at in self.coming if at <= now_s]:
            self.used[name] = 0
        self.coming = [(name, at) for name, at in self.coming if at > now_s]
        while self.waiting and self.waiting[0] <= self.free:
            for _ in range(self.waiting.pop(0)):
                self.used[min(self.used, key=self.used.get)] += 1
        free = {name: bounds.slots - used for name, used in self.used.items()}
        look = ClusterSample(pending=sum(self.waiting), starting=len(self.coming), free=free)
        decision = self.sizer.decide(look, now_s * 1000)
        assert all(self.used[name] == 0 for name in decision.release)
        assert not (decision.release and (self.waiting or decision.start))
        for name in decision.release:
            del self.used[name]
        self.coming += [(f"tm-{next(self.names):03}", now_s + LATE_S) for _ in range(decision.start)]
        assert bounds.least <= len(self.used) + len(self.coming) <= bounds.most

    @property
    def free(self):
        return sum(self.bounds.slots - used for used in self.used.values())


def settle(cluster, now_s):
    for second in range(now_s, now_s + 2 * LATE_S + 1):
        cluster.second(second)
    return now_s + 2 * LATE_S + 1


@given(
    least=st.integers(0, 3), more=st.integers(0, 4), slots=st.integers(1, 4),
    events=st.lists(st.tuples(st.sampled_from(["job", "die", "end", "rest"]), st.integers(0, 1 << 20)), max_size=25),
)  # fmt: skip
def test_jobs_get_their_slots_and_what_is_unused_goes(least, more, slots, events):
    bounds = Bounds(least=least, most=max(1, least + more), slots=slots, timeout_ms=TIMEOUT_S * 1000)
    cluster, now_s = Cluster(bounds), 0
    room = bounds.most * slots
    for kind, number in events:
        held = sum(cluster.used.values()) + sum(cluster.waiting)
        if kind == "job" and held < room:
            cluster.waiting.append(1 + number % (room - held))
        elif kind == "die" and cluster.used:
            lost = sorted(cluster.used)[number % len(cluster.used)]
            if again := cluster.used.pop(lost):
                cluster.waiting.append(again)  # its job asks anew
        elif kind == "end" and any(cluster.used.values()):
            name = min(name for name, used in cluster.used.items() if used)
            cluster.used[name] = 0
        for _ in range(number % 3):
            cluster.second(now_s)
            now_s += 1
    now_s = settle(cluster, now_s)
    assert not cluster.waiting, "all of it has room"
    cluster.used = dict.fromkeys(cluster.used, 0)
    for second in range(now_s, now_s + TIMEOUT_S + 2):
        cluster.second(second)
    assert len(cluster.used) + len(cluster.coming) == least
