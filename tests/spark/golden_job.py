"""One of the golden jobs, chosen by environment variables; run live, or planned for a backfill."""

import os
from collections.abc import Iterator

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

KIND, ROWS, SEED = os.environ["GOLDEN_KIND"], int(os.environ["GOLDEN_ROWS"]), int(os.environ.get("GOLDEN_SEED", "1"))
FOLDER = os.environ["GOLDEN_FOLDER"]
DISORDER_MS = int(os.environ.get("GOLDEN_DISORDER_MS", "400"))
BOUND_MS = int(os.environ.get("GOLDEN_BOUND_MS", "500"))
RATE = int(os.environ.get("GOLDEN_RATE", "300"))
USERS = 40


def orders(env, uid, seed):
    source = DatagenSource(rows=ROWS, splits=3, users=USERS, event_rate=RATE, disorder_ms=DISORDER_MS, seed=seed)
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness(BOUND_MS / 1000, timestamp="ts")
    return env.from_source(source, watermarks=strategy, uid=uid)


class Count(ps.Schema):
    user_id: int
    second: int
    rows: int


class BySecond(ps.KeyedProcessFunction):
    """Counts the orders of each key by second, and tells each count when its second is over."""

    counts: ps.MapState[int, int] = ps.map_state()
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Count]:
        second = ctx.timestamp // 1_000_000
        if self.counts.get(second) is None:
            ctx.timers.event((second + 1) * 1_000_000 - 1)
        self.counts.put(second, (self.counts.get(second) or 0) + 1)
        self.seen.update((self.seen.value() or 0) + 1)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Count]:
        second = timestamp // 1_000_000
        yield Count(user_id=ctx.key, second=second, rows=self.counts.get(second) or 0)
        self.counts.remove(second)


class Step(ps.Schema):
    user_id: int
    at: int
    before: int


class Steps(ps.KeyedProcessFunction):
    """Tells of every order when the key's one before it was (0: never): it must come in order."""

    last: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Step]:
        yield Step(user_id=ctx.key, at=ctx.timestamp, before=self.last.value() or 0)
        self.last.update(ctx.timestamp)


class Quiet(ps.KeyedProcessFunction):
    """Tells when a key has had no order for a while: the timer must fire before the next order takes it back."""

    timer: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Step]:
        set_for = self.timer.value()
        if set_for is not None:
            ctx.timers.delete(set_for)
        self.timer.update(ctx.timestamp + 100_000)
        ctx.timers.event(ctx.timestamp + 100_000)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Step]:
        yield Step(user_id=ctx.key, at=timestamp, before=timestamp - 100_000)


class Both(ps.Schema):
    user_id: int
    second: int
    rows: int
    others: int


class BothBySecond(ps.KeyedCoProcessFunction):
    """Counts the orders of each key by second and side, and tells both counts when the second is over."""

    ours: ps.MapState[int, int] = ps.map_state()
    theirs: ps.MapState[int, int] = ps.map_state()

    def process1(self, row, ctx: ps.ProcessContext) -> Iterator[Both]:
        yield from self._count(self.ours, ctx)

    def process2(self, row, ctx: ps.ProcessContext) -> Iterator[Both]:
        yield from self._count(self.theirs, ctx)

    def _count(self, counts, ctx):
        second = ctx.timestamp // 1_000_000
        counts.put(second, (counts.get(second) or 0) + 1)
        ctx.timers.event((second + 1) * 1_000_000 - 1)
        return ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Both]:
        second = timestamp // 1_000_000
        ours, theirs = self.ours.get(second) or 0, self.theirs.get(second) or 0
        yield Both(user_id=ctx.key, second=second, rows=ours, others=theirs)
        self.ours.remove(second)
        self.theirs.remove(second)


def two_inputs(main, other):
    """What the jobs give in which two streams meet at an operator that tells them apart."""
    if KIND == "join":
        return main.key_by("user_id").interval_join(other.key_by("user_id"), "-20ms", "20ms").uid("join")
    if KIND == "connect":
        return main.key_by("user_id").connect(other.key_by("user_id")).process(BothBySecond()).uid("both")
    if KIND == "window-join":
        met = main.join(other).where("user_id").equal_to("user_id").window(ps.Tumbling("1s"))
        return met.uid("met")
    versions = main.key_by("user_id").temporal_join(other.key_by("user_id")).uid("temporal")
    return versions.select("user_id", "amount", "ts", "ts_right")


def build(env):
    main = orders(env, "orders", SEED)
    late = None
    if KIND in ("windows", "stages"):
        windowed = main.key_by("user_id").window(ps.Tumbling("1s")).late_to("late")
        out = windowed.aggregate(n=ps.count(), total=ps.sum("amount")).uid("windows")
        late = out.side_output("late")
        if KIND == "stages":
            again = out.select("n", "total").key_by("n").window(ps.Tumbling("2s"))
            out = again.aggregate(windows=ps.count(), amount=ps.sum("total")).uid("again")
    elif KIND == "spread":
        spread = main.key_by("user_id", spread=16)  # each of the 40 users is hot
        windowed = spread.window(ps.Tumbling("1s"))
        out = windowed.aggregate(n=ps.count(), total=ps.sum("amount")).uid("windows")
    elif KIND == "sessions":
        out = main.key_by("user_id").window(ps.Session("150ms")).aggregate(n=ps.count(), total=ps.sum("amount"))
        out = out.uid("sessions")
    elif KIND in ("join", "connect", "window-join", "temporal"):
        out = two_inputs(main, orders(env, "others", SEED + 100))
    elif KIND == "process":
        out = main.key_by("user_id").process(BySecond()).uid("by-second")
    elif KIND == "union":
        both = main.union(orders(env, "others", SEED + 100))
        out = both.key_by("user_id").process(Steps()).uid("steps")
    elif KIND == "quiet":
        out = main.key_by("user_id").process(Quiet()).uid("quiet")
    elif KIND == "dedup":
        out = main.key_by("user_id").deduplicate(keep="first").uid("dedup")
    else:
        raise ValueError(KIND)
    out.sink_to(FileSink(f"{FOLDER}/out", format="jsonl"), uid="out")
    if late is not None:
        late.sink_to(FileSink(f"{FOLDER}/late", format="jsonl"), uid="late-out")


env = ps.Environment(
    parallelism=int(os.environ.get("GOLDEN_PARALLELISM", "2")),
    checkpoint_interval="500ms",
    checkpoint_root=f"{FOLDER}/checkpoints",
)
build(env)
env.execute(f"golden-{KIND}")
