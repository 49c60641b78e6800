"""What a seed runs: the input, the job, its phases; and what must come out, computed naively from the input alone."""

from __future__ import annotations

import operator
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from tests.sim.connectors import ORDER_SCHEMA, RECORDS_PER_POLL, source_spec
from tests.support.sizes import TINY

import penstock as ps
from penstock.config.settings import AdaptiveSchedulerSettings, RestartStrategy
from penstock.connector.sink import SinkSpec
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import JobGraph
from penstock.state.memory.limits import PRODUCTION, StateLimits

JOB = "sim"
INPUT, OUTPUT = "orders", "totals"
_MS = 1000
#: The users of region n have numbers from n times this.
USERS_OF_A_REGION = 1000
#: Sizes without those that would let no plan have several segments: its tables are small.
_DELTAS = PRODUCTION.changed(whole_rows=0, encoded_at_once_bytes=0)
#: What a wrong version adds to a sum: more than any sum.
FAR = 1_000_000
#: Failed checkpoints in a row that a job survives in any history.
_TOLERANT = 100
#: (user, amount, event time in us).
Row = tuple[int, int, int]


@dataclass(frozen=True)
class Phase:
    """One run of the job: its parallelism and how it ends."""

    parallelism: int
    #: `finish`, `stop` or `drain` (both with a savepoint) or `cancel`.
    end: str = "finish"
    #: Begins from the savepoint of the phase before, instead of the job's newest checkpoint.
    from_savepoint: bool = False


@dataclass
class Plan:
    """Everything about a run but its faults."""

    rows: list[list[Row]]
    bound_ms: int
    size_ms: int
    slide_ms: int
    phases: list[Phase]
    settings: dict[str, Any] = field(default_factory=dict)
    chunk_bytes: int = 64 << 20
    #: The input appears over this much virtual time.
    input_ms: float = 1200.0
    #: State parts below this travel in the ack.
    inline_bytes: int = 0
    sweep_grace_ms: int = 100
    #: Sizes of state, and a worker's memory for it.
    limits: StateLimits = _DELTAS
    managed_memory_bytes: int = 256 << 20
    network_memory_bytes: int | None = None
    #: Slots of a TaskManager for each region.
    slots: int = 2
    #: Pause after each message of rows, which a subtask then takes one by one: with a long one, rows wait for it.
    slow_ms: float = 0.0
    #: How long the first leader waits with the start: TaskManagers that have registered by then share the job's slots.
    begin_ms: float = 0.0
    #: Further time that a fetch of remote state takes in the background: rows wait for it.
    fetch_ms: float = 0.0
    #: Standbys probe the leader.
    probes: bool = False
    #: The longest time from the stop of a killed worker to its exit; None: it exits at once.
    exit_ms: float | None = None
    #: Unconnected pipelines of the job: each reads every n-th partition, from its own topic.
    regions: int = 1
    #: Parts into which hot keys of windows are split; 1: none is.
    spread: int = 1
    #: Whether they share slots: a lost worker then fails all of them.
    shared_slots: bool = False

    @classmethod
    def drawn(cls, chance: random.Random) -> Plan:
        """Draw input, job and phases."""
        bound_ms = chance.choice([0, 10, 60])
        partitions = chance.randint(1, 4)
        count = chance.choice([30, 60, 100])
        users = chance.choice([1, 3, 8, 40])
        size_ms = chance.choice([50, 100, 200])
        slide_ms = size_ms if chance.random() < 0.6 else size_ms // 4
        phases = []
        for _ in range(chance.choice([0, 0, 1, 1, 2])):
            end = chance.choice(["stop", "stop", "cancel"])
            phases.append(Phase(chance.randint(1, 3), end, bool(phases) and chance.random() < 0.5))
        phases.append(Phase(chance.randint(1, 3), "finish", bool(phases) and chance.random() < 0.5))
        return cls(
            rows=[_partition(chance, count, users, bound_ms) for _ in range(partitions)],
            bound_ms=bound_ms,
            size_ms=size_ms,
            slide_ms=slide_ms,
            phases=phases,
            settings=_settings(chance),
            # not smaller: a stop's savepoint copies every chunk, and must be done within the checkpoint's time-out
            chunk_bytes=chance.choice([500, 1500, 64 << 20]),
            input_ms=chance.choice([100.0, 800.0, 1500.0]),
            inline_bytes=chance.choice([0, 0, 1500, 32 << 10]),
            sweep_grace_ms=chance.choice([0, 100, 1000]),
        )

    def draw_probes(self, chance: random.Random) -> None:
        """Draw whether standbys probe the leader."""
        self.probes = chance.random() < 0.4

    def draw_state(self, chance: random.Random) -> None:
        """Draw where state lies, its sizes, and how much of it has room in memory and on the local disk."""
        backend = chance.choice(["hashmap", "rocksdb", "remote"])
        self.settings["state_backend"] = backend
        if chance.random() < 0.3:
            self.limits = PRODUCTION
            return
        self.limits = TINY.changed(
            hot_keys=chance.choice([0, 1, 4, 16]),
            incoming_keys=chance.choice([1, 2, 16]),
            group_rows=chance.choice([1, 3, 16]),
            segments_per_tier=chance.choice([2, 3, 8]),
            regions=chance.choice([1, 4, 32]),
            fetched_rows=chance.choice([3, 6, 96]),
            whole_file_bytes=chance.choice([0, 0, 1 << 20]),
        )
        if backend != "hashmap":
            self.managed_memory_bytes = chance.choice([1 << 10, 1 << 20, 256 << 20])
            self.settings["remote_local_bytes"] = chance.choice([1, 1 << 30, 8 << 30])

    def draw_barriers(self, chance: random.Random) -> None:
        """Draw whether barriers overtake rows, and when; and whether rows wait for a slow subtask."""
        self.slow_ms = chance.choice([0.0, 0.0, 4.0, 10.0])
        self.settings["unaligned_checkpoints"] = chance.random() < 0.6
        self.settings["aligned_checkpoint_timeout_ms"] = chance.choice([0, 0, 5, 30])
        self.settings["buffer_debloat_target_ms"] = chance.choice([0, 0, 5, 50])
        self.network_memory_bytes = chance.choice([None, None, 1 << 19, 4 << 20])

    def draw_fetches(self, chance: random.Random) -> None:
        """Draw how long rows wait for remote state."""
        self.fetch_ms = chance.choice([0.0, 10.0, 60.0, 150.0, 150.0])

    def draw_regions(self, chance: random.Random) -> None:
        """Draw how many regions the job has, and whether they share slots."""
        self.split(chance.choice([1, 2, 2, 3]), chance)
        self.shared_slots = chance.random() < 0.2

    def split(self, regions: int, chance: random.Random) -> None:
        """Give the job that many regions, with a partition each at least; their windows differ by the user."""
        self.regions = regions
        while len(self.rows) < regions:
            self.rows.append(_partition(chance, 60, 8, self.bound_ms))
        for partition, rows in enumerate(self.rows):
            first = USERS_OF_A_REGION * (partition % regions)
            self.rows[partition] = [(first + user, amount, time) for user, amount, time in rows]

    def draw_spread(self, chance: random.Random) -> None:
        """Draw whether hot keys are split: then each row comes several times, as the first rows of a key are not."""
        if self.settings.get("checkpoint_mode") != "at-least-once":  # such jobs are refused
            self.spread = chance.choice([1, 1, 1, 2, 4])
        if self.spread > 1:
            self.rows = [[row for row in rows for _ in range(3)] for rows in self.rows]

    def draw_checkpoints(self, chance: random.Random) -> None:
        """Draw how many checkpoints are under way at a time, and whether their barriers block channels.

        Barriers that do not overtake wait for the rows before them. A job that tolerates few failures has a time-out
        for the whole input: after each restart it would meet the same rows again, and no checkpoint would complete.
        """
        if self.settings["unaligned_checkpoints"]:
            return
        if self.settings["checkpoint_tolerated_failures"] < _TOLERANT:
            least_ms = 2 * int(self._backlog_ms)
            self.settings["checkpoint_timeout_ms"] = max(self.settings["checkpoint_timeout_ms"], least_ms)
        self.settings["max_concurrent_checkpoints"] = chance.choice([1, 2, 3])
        if self.settings["max_concurrent_checkpoints"] > 1:
            self.settings["checkpoint_min_pause_ms"] = 0
        self.settings["checkpoint_mode"] = chance.choice(["exactly-once", "at-least-once"])

    def draw_copies(self, chance: random.Random) -> None:
        """Draw how much of the newest checkpoint has copies on the TaskManagers."""
        self.settings["local_recovery_bytes"] = chance.choice([0, 4_000, 8 << 30])

    def draw_preparation(self, chance: random.Random) -> None:
        """Draw whether the next workers of a rescale load state while the old ones run."""
        self.settings["prepare_state_bytes"] = chance.choice([0, 0, 0, 1 << 40])

    def draw_exits(self, chance: random.Random) -> None:
        """Draw how long the kernel frees the memory of a killed worker."""
        self.exit_ms = chance.choice([None, 40.0, 300.0])

    def draw_scheduler(self, chance: random.Random) -> None:
        """Draw whether the job's parallelism follows the slots, and how long it waits before that."""
        if chance.random() < 0.4:
            self.settings["adaptive_scheduler"] = AdaptiveSchedulerSettings(
                enabled=True,
                min_parallelism=chance.choice([1, 1, 2]),
                resource_wait_timeout_ms=chance.choice([300, 1000]),
                resource_stabilization_timeout_ms=chance.choice([0, 20, 60]),
                scaling_interval_ms=chance.choice([20, 50, 200]),
            )
            # faults often abandon its rescales: it runs when they have ended
            self.input_ms = chance.choice([self.input_ms, 3000.0])

    @property
    def _backlog_ms(self) -> float:
        """How long a slow subtask takes for all rows of a region, if they wait for it."""
        messages = [sum(-(-len(rows) // RECORDS_PER_POLL) for rows in topic) for topic in self.topics.values()]
        return max(messages) * self.slow_ms

    @property
    def topics(self) -> dict[str, list[list[Row]]]:
        """The partitions of each region's topic."""
        return {INPUT if r == 0 else f"{INPUT}-{r}": self.rows[r :: self.regions] for r in range(self.regions)}

    @property
    def aligned(self) -> bool:
        """Whether the output has each row once; else at least once."""
        return self.settings.get("checkpoint_mode") != "at-least-once"

    def graph(self, phase: Phase, root: str) -> JobGraph:
        """The job as it is submitted in a phase."""
        env = ps.Environment(parallelism=phase.parallelism, checkpoint_interval="100ms", checkpoint_root="unused")
        self.results(env)
        graph = env.job_graph(JOB)
        settings = msgspec.structs.replace(graph.settings, checkpoint_root=root, **self.settings)
        vertices = tuple(
            msgspec.structs.replace(
                vertex,
                operators=tuple(
                    msgspec.structs.replace(o, config={**o.config, "chunk_bytes": self.chunk_bytes})
                    if o.kind == "sink"
                    else o
                    for o in vertex.operators
                ),
            )
            for vertex in graph.vertices
        )
        return msgspec.structs.replace(graph, settings=settings, vertices=vertices)

    def results(self, env: ps.Environment) -> None:
        """Build the job from its sources to its sinks."""
        strategy = ps.WatermarkStrategy.bounded_out_of_orderness(f"{self.bound_ms}ms", timestamp="ts")
        for number, (topic, partitions) in enumerate(self.topics.items()):
            source = _Source(topic, [len(rows) for rows in partitions])
            orders = env.from_source(source, watermarks=strategy, uid=topic)
            if number and not self.shared_slots:
                orders.slot_sharing_group(f"region-{number + 1}")
            totals = self.windows(orders).uid(f"totals-{number}") if number else self.totals(orders)
            totals.sink_to(_Sink(), uid=f"out-{number}" if number else "out")

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        """Return the results of the first region."""
        return self.windows(orders).uid("totals")

    def windows(self, orders: ps.DataStream) -> ps.DataStream:
        """Count and sum of each user and window."""
        window = (
            ps.Tumbling(f"{self.size_ms}ms")
            if self.size_ms == self.slide_ms
            else ps.Sliding(f"{self.size_ms}ms", f"{self.slide_ms}ms")
        )
        return (
            orders.key_by("user_id", spread=self.spread).window(window).aggregate(n=ps.count(), total=ps.sum("amount"))
        )

    def expected(self) -> Counter[tuple[int, ...]]:
        """Naively: (user, window start, window end, count, sum) of every window with rows."""
        size, slide = self.size_ms * _MS, self.slide_ms * _MS
        found: dict[tuple[int, int], list[int]] = {}
        for rows in self.rows:
            for user, amount, time in rows:
                start = time - time % slide
                while start > time - size:
                    found.setdefault((user, start), []).append(amount)
                    start -= slide
        return Counter((user, start, start + size, len(a), sum(a)) for (user, start), a in found.items())


class SessionsPlan(Plan):
    """The same with sessions of each user."""

    @property
    def gap_ms(self) -> int:
        """The gap of sessions."""
        return self.size_ms // 4

    def windows(self, orders: ps.DataStream) -> ps.DataStream:
        """Count and sum of each user and session."""
        sessions = orders.key_by("user_id").window(ps.Session(f"{self.gap_ms}ms"))
        return sessions.aggregate(n=ps.count(), total=ps.sum("amount"))

    def expected(self) -> Counter[tuple[int, ...]]:
        """Naively: (user, window start, window end, count, sum) of every session."""
        gap, found = self.gap_ms * _MS, list[tuple[int, ...]]()
        open_sessions: dict[int, tuple[int, ...]] = {}
        for user, amount, time in sorted((row for rows in self.rows for row in rows), key=operator.itemgetter(2)):
            before = open_sessions.get(user)
            if before is not None and time <= before[2]:
                open_sessions[user] = (user, before[1], time + gap, before[3] + 1, before[4] + amount)
                continue
            found += [] if before is None else [before]
            open_sessions[user] = (user, time, time + gap, 1, amount)
        return Counter([*found, *open_sessions.values()])


def _partition(chance: random.Random, count: int, users: int, bound_ms: int) -> list[Row]:
    """Rows with disorder up to the bound: never more than `bound_ms` behind the largest time before."""
    rows, largest = [], 1_000_000
    for _ in range(count):
        largest += chance.choice([0, 1, 3, 10, 25])
        behind = chance.choice([0, 0, bound_ms // 2, bound_ms, chance.randint(0, bound_ms)])
        rows.append((chance.randrange(users), chance.randint(-5, 100), (largest - behind) * _MS))
    return rows


def _settings(chance: random.Random) -> dict[str, Any]:
    return {
        "key_groups": chance.choice([4, 16, 1024]),
        "checkpoint_interval_ms": chance.choice([40, 80, 150]),
        "checkpoint_timeout_ms": chance.choice([150, 400, 800]),
        "checkpoint_min_pause_ms": chance.choice([0, 0, 20]),
        "checkpoint_tolerated_failures": chance.choice([0, 2, _TOLERANT]),
        "retained_checkpoints": chance.choice([1, 2, 3]),
        "buffer_timeout_ms": chance.choice([0, 2, 10, 30]),
        "buffer_size_bytes": chance.choice([256, 1024, 1 << 20]),
        "exclusive_buffers": chance.choice([1, 2]),
        "floating_buffers": chance.choice([0, 2, 8]),
        "local_recovery_bytes": 0,
        "sink_pending_max_epochs": chance.choice([1, 3, 1000]),
        "restart": RestartStrategy(kind="fixed-delay", delay_ms=chance.choice([5, 50, 150])),
    }


@dataclass(frozen=True)
class _Source:
    topic: str
    ends: list[int]
    row_schema: pa.Schema = ORDER_SCHEMA

    def spec(self):
        return source_spec(self.topic, ends=self.ends)


class _Sink:
    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        return SinkSpec(
            factory="tests.sim.connectors:SimSinkFactory",
            config={"topic": OUTPUT},
            delivery="exactly-once",
            schema=schema_to_text(input_schema),
        )
