"""What can go wrong, how often in this seed, and how often it did.

Swarm style: a seed enables a random subset of kinds with random rates, so that some runs have much of one fault and
none of another. `Swarm.strikes(kind)` is asked where the fault could happen; the world's nemesis asks `next_strike`
for those that come from outside.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

#: Struck where the code passes: kind -> usual probability.
POINTS: Mapping[str, float] = {
    "put-fails-before": 0.05,
    "put-fails-after": 0.05,
    "read-fails": 0.01,
    "upload-delayed": 0.12,
    "message-delayed": 0.03,
    "command-late": 0.3,
    "ack-duplicated": 0.2,
    "ack-late": 0.05,
    "frames-delayed": 0.01,
    "kill-before-manifest": 0.05,
    "kill-after-manifest": 0.05,
    "pause-leader-at-manifest": 0.06,
    "kill-before-init": 0.04,
    "kill-before-commit": 0.06,
    "kill-after-commit": 0.09,
    "kill-fence": 0.15,
    "zombie-in-publish": 0.04,
    "publish-delayed": 0.05,
}
#: Struck at each copy of checkpoint files that an ended worker leaves.
COPY_DAMAGED = "copy-damaged"
#: Struck at each start of a worker: another one, unknown to the leader, has its slot.
SLOT_REFUSED = "slot-refused"
#: Struck by the nemesis: a user rescales the running job.
RESCALE = "rescale"
#: Struck by the nemesis: a user upgrades the running job.
UPGRADE = "upgrade"
#: Struck by the nemesis: a user requests a checkpoint.
REQUEST = "checkpoint-requested"
#: Struck by the nemesis: a user lets the leader hand over to a standby.
HAND_OVER = "leader-hands-over"
#: Struck by the nemesis: the path from a standby to the leader breaks; both reach the store.
PATH_BROKEN = "path-broken"
#: Struck by the nemesis: kind -> weight.
STRIKES: Mapping[str, float] = {
    "worker-killed": 4,
    "taskmanager-killed": 2,
    "jobmanager-killed": 2,
    "leader-paused": 2,
    "standby-paused": 1,
    "standby-killed": 0.5,
    "worker-paused": 2,
    "worker-zombie": 2,
    "session-lost": 2,
    "connection-lost": 2,
    "kafka-down": 1.5,
    "store-down": 1.5,
    "savepoint": 2,
}
#: Consequences and planned acts that are counted where they are seen.
SEEN = (
    "checkpoint-completed",
    "checkpoint-aborted",
    "checkpoint-timed-out",
    "savepoint-written",
    "requested-checkpoint-written",
    "requested-aligned",
    "requested-unaligned",
    "upgrade-trial",
    "upgrade-completed",
    "upgrade-rolled-back",
    "rows-spread",
    "restart",
    "region-killed",
    "region-restarted",
    "region-failed-again",
    "published-at-recovery",
    "transaction-fenced",
    "stop-with-savepoint",
    "cancelled",
    "rescaled",
    "rescaled-in-place",
    "slots-followed-down",
    "slots-followed-up",
    "from-savepoint",
    "zombie-leader-refused",
    "leader-elected",
    "leader-superseded",
    "replaced-before-its-lease-ended",
    "workers-adopted",
    "restarted-region-adopted",
    "workers-not-adopted",
    "swept-file",
    "compaction",
    "keys-evicted",
    "changes-spilled",
    "remote-fetch",
    "remote-pieces-came",
    "rows-waited",
    "waiting-rows-taken",
    "checkpoints-overlapping",
    "checkpoint-subsumed",
    "rows-after-barrier",
    "rows-counted-again",
    "rows-overtaken",
    "overtaken-rows-restored",
    "copy-read",
    "copy-refused",
    "state-prepared",
    "state-advanced",
    "deployed-before-exit",
)


@dataclass
class Swarm:
    """The faults of one run."""

    random: random.Random
    points: dict[str, float] = field(default_factory=dict)
    strikes_: dict[str, float] = field(default_factory=dict)
    #: Mean virtual time between two strikes.
    every_ms: float = 250.0
    active: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    #: Hears of every fault as it strikes.
    tell: Callable[[str], None] = lambda _text: None

    @classmethod
    def drawn(cls, chance: random.Random) -> Swarm:
        """Draw which faults this seed has, and how often."""
        share = chance.choice([0.25, 0.5, 0.8])
        points = {
            kind: min(0.5, usual * chance.choice([0.5, 1, 1, 3]))
            for kind, usual in POINTS.items()
            if chance.random() < share
        }
        strikes = {
            kind: weight * chance.choice([0.5, 1, 2]) for kind, weight in STRIKES.items() if chance.random() < share
        }
        return cls(chance, points, strikes, chance.choice([120.0, 250.0, 400.0, 800.0]))

    @classmethod
    def quiet(cls, chance: random.Random) -> Swarm:
        """No fault at all."""
        return cls(chance)

    def damage_copies(self, chance: random.Random) -> None:
        """Draw how often copies are damaged; apart from the other faults, whose histories stay as they are."""
        self.points[COPY_DAMAGED] = chance.choice([0.0, 0.2, 0.6])

    def refuse_slots(self, chance: random.Random) -> None:
        """Draw how often TaskManagers refuse slots."""
        self.points[SLOT_REFUSED] = chance.choice([0.0, 0.0, 0.0, 0.2])

    def break_paths(self, chance: random.Random) -> None:
        """Draw how often the path from a standby to the leader breaks."""
        self._add(PATH_BROKEN, chance.choice([0.0, 0.2, 0.4]))

    def hand_over(self, chance: random.Random) -> None:
        """Draw how often the leader hands over."""
        self._add(HAND_OVER, chance.choice([0.0, 0.0, 0.2]))

    def rescale(self, chance: random.Random) -> None:
        """Draw how often the running job is rescaled."""
        self._add(RESCALE, chance.choice([0.0, 0.5, 1.0]))

    def upgrade(self, chance: random.Random) -> None:
        """Draw how often the running job is upgraded."""
        self._add(UPGRADE, chance.choice([0.0, 0.4, 0.8]))

    def request_checkpoints(self, chance: random.Random) -> None:
        """Draw how often a user requests a checkpoint."""
        self._add(REQUEST, chance.choice([0.0, 0.3, 0.6]))

    def _add(self, kind: str, share: float) -> None:
        """Let a kind strike as often as `share` of all others, which strike as often as before."""
        if share:
            self.strikes_[kind] = share * (sum(self.strikes_.values()) or 1.0)
            self.every_ms /= 1 + share

    def strikes(self, kind: str) -> bool:
        """Whether the fault happens here; counted when it does."""
        rate = self.points.get(kind, 0.0)
        if not self.active or not rate or self.random.random() >= rate:
            return False
        self.counts[kind] += 1
        self.tell(f"fault: {kind}")
        return True

    def next_strike(self) -> tuple[float, str] | None:
        """When the nemesis strikes next, and how."""
        if not self.strikes_:
            return None
        kind = self.random.choices(list(self.strikes_), list(self.strikes_.values()))[0]
        return self.random.expovariate(1 / self.every_ms), kind

    def seen(self, kind: str, times: int = 1) -> None:
        """Count something that was seen to happen."""
        self.counts[kind] += times
