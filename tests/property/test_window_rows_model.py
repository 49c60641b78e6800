"""Windows with triggers and evictors over their state against a plain Python model.

Any order of batches, watermarks, freezes, failed uploads, compactions, crashes and rescales, wherever the state is,
gives the model's output.
"""

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, leaving, leaving_for_rocksdb, on
from tests.property.harness.histories import SEEDS, Pace, end, operations, play, step
from tests.property.harness.job import Input, Job, spec_of
from tests.property.window_rows_model import MINUTE, Model

import penstock as ps
from penstock.core.elements import TS_COLUMN
from penstock.core.schema import schema_to_text
from penstock.operators.windows.window_assigners import WindowAssigner

KEYS = [None, "", *(f"key-{i}" for i in range(4))]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("v", pa.int64(), nullable=False),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
OUTPUT = pa.schema(
    [("k", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("rows", pa.string()), (TS_COLUMN, pa.int64())]
)
#: What the job says of windows, and the model.
WINDOWS = {
    "tumbling": ({"kind": "tumbling", "size_us": 100}, ("time", 100, 100)),
    "sliding": ({"kind": "sliding", "size_us": 90, "slide_us": 30}, ("time", 90, 30)),
    "session": ({"kind": "session", "gap_us": 30}, ("session", 30)),
    "global": ({"kind": "global"}, ("global",)),
}
#: Windows of the clock in Berlin in minutes, each with when the clock is set.
CLOCK = {"time_zone": "Europe/Berlin"}
SPRING, AUTUMN = 1774746000 // 60, 1792890000 // 60
ZONED = [
    (({"kind": "sliding", "size_us": 90 * MINUTE, "slide_us": 30 * MINUTE, **CLOCK}, ("zone", 90, 30)), SPRING),
    (({"kind": "tumbling", "size_us": 30 * MINUTE, **CLOCK}, ("zone", 30, 30)), AUTUMN),
    (({"kind": "sliding", "size_us": 20 * MINUTE, "slide_us": 60 * MINUTE, **CLOCK}, ("zone", 20, 60)), AUTUMN),
]


class Quiet(ps.Trigger):
    """Fires when no row has come for a while: every row takes the timer of the one before back."""

    can_merge = event_time = True

    def __init__(self, pause):
        self.pause = pause

    def on_element(self, row, timestamp, window, ctx):
        if "due" in ctx.state:
            ctx.delete(ctx.state["due"])
        return self.wait(timestamp + self.pause, ctx)

    def on_event_time(self, timestamp, window, ctx):
        if ctx.state.get("due") != timestamp:
            return ps.TriggerResult.CONTINUE
        del ctx.state["due"]
        return ps.TriggerResult.FIRE

    def on_merge(self, window, ctx, merged):
        waiting = [state["due"] for state in merged if "due" in state]
        if waiting:
            self.wait(max(waiting), ctx)

    def wait(self, due, ctx):
        ctx.state["due"] = due
        ctx.event(due)
        return ps.TriggerResult.CONTINUE


TRIGGERS = {
    "event": lambda _: ps.trigger.event_time(),
    "count": ps.trigger.count,
    "continuous": None,
    "delta": lambda n: ps.trigger.delta(n, "v"),
    "quiet": Quiet,
}
EVICTORS = {
    None: lambda _: None,
    "count": ps.evictor.count,
    "time": lambda n: ps.evictor.time(n / 1000),
    "after": lambda n: ps.evictor.count(n, after=True),
}


def all_rows(key, window, rows):
    return [{"k": key, "start": window.start, "end": window.end, "rows": " ".join(str(row.v) for row in rows)}]


def trigger_of(rule):
    kind, number, purges, *_ = rule
    made = ps.trigger.continuous_event_time("1s") if kind == "continuous" else TRIGGERS[kind](number)
    if kind == "continuous":
        made._interval = number
    return ps.trigger.purging(made) if purges else made


def evictor_of(rule):
    made = EVICTORS[rule[3]](rule[4])
    if rule[3] == "time":
        made._keep = rule[4]
    return made


def job_on(backend, window, rule, lateness):
    config, shape = window
    config = {
        "key": ["k"],
        "window": config,
        "mode": "apply",
        "allowed_lateness_us": lateness,
        "late_to": {"tag": "late", "columns": SCHEMA.names},
    }
    functions = cloudpickle.dumps((trigger_of(rule), evictor_of(rule), all_rows, None))
    spec = spec_of("window_rows", config, payload=functions, output_schema=schema_to_text(OUTPUT))
    return Job(spec, (Input(SCHEMA, ("k",)),), KEYS, Model(shape, rule, lateness, KEYS), backend)


class Steps:
    """Rows that are drawn, and watermarks; event time has a base and a unit."""

    def __init__(self, job, base=0, unit=1):
        self.job, self.pace, self.base, self.unit = job, Pace(every=20, rows=100, marks=250), base, unit
        self.value = 0

    def batch(self, seed, count):
        random, around = np.random.default_rng(seed), self.pace.batch()
        rows = []
        for _ in range(count):
            self.value += 1
            key = KEYS[int(random.integers(len(KEYS)))]
            time = self.base + int(around + random.integers(-90, 90)) * self.unit
            rows.append({"k": key, "v": self.value, TS_COLUMN: time})
        for row in rows:
            self.job.model.add(row["k"], row[TS_COLUMN], row["v"])
        self.compare([self.job.push(subtask, mine) for subtask, mine in self.job.parts(rows)])

    def watermark(self, subtask, further):
        subtask %= len(self.job.subtasks)
        last = (self.job.marks[subtask] - self.base) // self.unit
        self.mark(subtask, self.base + self.pace.mark(further, last) * self.unit)

    def mark(self, subtask, timestamp):
        if timestamp > self.job.operators[subtask]._watermarks.low:
            self.job.model.advance(self.job.owned(subtask), timestamp)
        self.compare([self.job.watermark(subtask, timestamp)])

    def compare(self, outs):
        """What was emitted is what the model has; late rows of a key keep their order."""
        model = self.job.model
        assert sorted(repr(tuple(row.values())[:4]) for out in outs for row in out.rows) == sorted(map(repr, model.out))
        late = [((tag, row["k"]), row[TS_COLUMN], row["v"]) for out in outs for tag, row in out.late]
        expected = [(("late", key), time, value) for key, time, value in model.late]
        assert sorted(late, key=tag_and_key) == sorted(expected, key=tag_and_key)
        model.out, model.late = [], []


def tag_and_key(row):
    return repr(row[0])


OPERATIONS = operations(
    step("batch", SEEDS, st.integers(1, 30), times=4),
    step("watermark", st.integers(0, 3), st.integers(0, 150), times=4),
    step("checkpoint", times=2),
    step("rescale", st.integers(1, 4)),
    least=12,
    most=40,
)
#: Some state is restored before anything else.
RESTORED = [("batch", 1, 30), ("watermark", 0, 100), ("checkpoint",), ("batch", 2, 30), ("checkpoint",), ("start", 2)]
#: One subtask goes on from two that were at different times.
DRIFTED = [*RESTORED, ("batch", 3, 30), ("watermark", 0, 260), ("rescale", 1), ("batch", 4, 30)]
#: A trigger with its number, whether it purges, and an evictor with its number.
RULES = [
    (*trigger, purges, *evictor)
    for trigger in [("event", 0), ("count", 3), ("continuous", 40), ("delta", 6), ("quiet", 25)]
    for purges in (False, True)
    for evictor in [(None, 0), ("count", 2), ("time", 25), ("after", 1)]
]


def run(backend, window, rule, lateness, before, history):
    if window == "session" and rule[0] == "delta":  # which cannot merge
        rule = ("count", *rule[1:])
    with job_on(backend, WINDOWS[window], rule, lateness) as job:
        steps = Steps(job)
        play([*before, *history], steps, job)
        end(job, steps)


@on((MEMORY, 100), (leaving(1), 80), (leaving_for_rocksdb(1), 15), (REMOTE, 16))
def test_any_history_gives_the_models_windows(backend):
    drawn = {"window": sorted(WINDOWS), "rule": RULES, "lateness": [0, 60]}
    drawn["before"] = [RESTORED, DRIFTED] if backend.state == "remote" else [[], DRIFTED]
    backend.check(run, **{name: st.sampled_from(some) for name, some in drawn.items()}, history=OPERATIONS)


def run_zoned(backend, zoned, rule, lateness, history):
    window, minute = zoned
    with job_on(backend, window, rule, lateness) as job:
        steps = Steps(job, minute * MINUTE, MINUTE)
        play(history, steps, job)
        end(job, steps)


@on((MEMORY, 40))
def test_windows_of_a_wall_clock_are_the_models_while_the_clock_is_set(backend):
    rules = [rule for rule in RULES if rule[0] in ("event", "count") and rule[3] != "time"]
    lateness = st.sampled_from([0, 45 * MINUTE])
    zoned = st.sampled_from(ZONED)
    backend.check(run_zoned, zoned=zoned, rule=st.sampled_from(rules), lateness=lateness, history=OPERATIONS)


MANY = {"sliding": {"kind": "sliding", "size_us": 2000, "slide_us": 1}, "session": {"kind": "session", "gap_us": 1}}


@on(MEMORY)
@pytest.mark.parametrize("shape", sorted(MANY))
def test_a_watermark_looks_at_the_windows_it_closes_however_many_are_open(backend, shape, monkeypatch):
    looked = []
    cleanup_time = WindowAssigner.cleanup_time

    def counted(self, window):
        looked.append(window)
        return cleanup_time(self, window)

    monkeypatch.setattr(WindowAssigner, "cleanup_time", counted)
    with job_on(backend, (MANY[shape], None), ("event", 0, False, None, 0), 0) as job:
        times = range(2000) if shape == "sliding" else range(0, 6000, 3)
        job.push(0, [{"k": "a", "v": 0, TS_COLUMN: time} for time in (times[:1] if shape == "sliding" else times)])
        looked.clear()
        assert sum(len(job.watermark(0, time).rows) for time in times[:200]) == 200
        assert len(looked) < 200 * 8
