"""Windows with triggers and evictors over their state against a plain Python model.

Any order of batches, watermarks, checkpoints, restores and rescales gives the model's output.
"""

import tempfile
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property import process_job
from tests.property.process_job import keys_leave, keys_leave_for_rocksdb
from tests.property.small_pieces import part
from tests.property.window_rows_model import MINUTE, Model
from tests.support import sizes as state_sizes
from tests.support.depth import examples

import penstock as ps
from penstock.core.clock import ManualClock
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.hashing import hash_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.operators.window_assigners import WindowAssigner
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

UID, KEY_GROUPS = "rows", 64
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
WINDOWS = {
    "tumbling": {"kind": "tumbling", "size_us": 100},
    "sliding": {"kind": "sliding", "size_us": 90, "slide_us": 30},
    "session": {"kind": "session", "gap_us": 30},
    "global": {"kind": "global"},
    "spring": {"kind": "sliding", "size_us": 90 * MINUTE, "slide_us": 30 * MINUTE, "time_zone": "Europe/Berlin"},
    "autumn": {"kind": "tumbling", "size_us": 30 * MINUTE, "time_zone": "Europe/Berlin"},
    "gaps": {"kind": "sliding", "size_us": 20 * MINUTE, "slide_us": 60 * MINUTE, "time_zone": "Europe/Berlin"},
}
#: When the clock is set.
SPRING, AUTUMN = 1774746000 // 60, 1792890000 // 60
SHAPES = {
    "tumbling": ("time", 100, 100),
    "sliding": ("time", 90, 30),
    "session": ("session", 30),
    "global": ("global",),
    "spring": ("zone", 90, 30),
    "autumn": ("zone", 30, 30),
    "gaps": ("zone", 20, 60),
}


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


class Out:
    def __init__(self):
        self.rows, self.late = [], []

    def batch(self, batch):
        batch.data.validate(full=True)
        self.rows += [tuple(row.values())[:4] for row in batch.data.to_pylist()]

    def side(self, tag, batch):
        assert tag == "late"
        self.late += [(row["k"], row[TS_COLUMN], row["v"]) for row in batch.data.to_pylist()]

    def watermark(self, watermark):
        pass


class Job:
    """Subtasks of the operator and the newest complete checkpoint."""

    def __init__(self, folder, window, rule, lateness):
        self.folder, self.rule, self.files = Path(folder), rule, {}
        self.config = {
            "key": ["k"],
            "window": WINDOWS[window],
            "mode": "apply",
            "allowed_lateness_us": lateness,
            "late_to": {"tag": "late", "columns": SCHEMA.names},
        }
        self.model = Model(SHAPES[window], rule, lateness, KEYS)
        self.complete = (None, self.model.copy())
        self.attempt = self.checkpoint = self.value = self.base = 0
        self.unit = 1
        self.subtasks = []
        batch = pa.RecordBatch.from_pydict({"k": pa.array(KEYS, pa.string())})
        self.hash = dict(zip(KEYS, hash_columns(batch, ("k",)).tolist(), strict=True))
        self.restart(1)

    def restart(self, parallelism):
        self.close()
        self.attempt += 1
        saved, model = self.complete
        self.model = model.copy()
        self.subtasks = [self.open(hash_range_of(s, parallelism, KEY_GROUPS), s, saved) for s in range(parallelism)]

    def open(self, owned, subtask, saved):
        keyed, restored = saved or ([], [])
        request = KeyedStateRequest(
            uid=UID,
            snapshots=tuple(c for s in keyed if (c := clip_keyed(s, owned)) is not None),
            hash_range=owned,
            settings=process_job.SETTINGS,
            read=self.read,
            directory=self.folder / f"{self.attempt}-{subtask}",
            writer=f"run/v/{subtask}/{self.attempt}",
            budget=MemoryBudget(64 << 20),
            limits=state_sizes.sizes(),
        )
        store = open_keyed_state(request)
        operator = create_operator("window_rows")
        functions = (trigger_of(self.rule), evictor_of(self.rule), all_rows, None)
        values = {"config": self.config, "uid": UID, "payload": cloudpickle.dumps(functions)}
        operator.open(Context({**values, "output_schema": schema_to_text(OUTPUT)}, owned, store, tuple(restored)))
        return operator, store

    def owned(self, subtask):
        owned = hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)
        return [key for key in KEYS if self.hash[key] in owned]

    def batch(self, seed, count, around):
        random = np.random.default_rng(seed)
        rows = []
        for _ in range(count):
            self.value += 1
            key = KEYS[int(random.integers(len(KEYS)))]
            time = self.base + int(around + random.integers(-90, 90)) * self.unit
            rows.append((key, time, self.value))
        for row in rows:
            self.model.add(*row)
        for s, (operator, _) in enumerate(self.subtasks):
            mine = [dict(zip(("k", TS_COLUMN, "v"), row, strict=True)) for row in rows if row[0] in self.owned(s)]
            if mine:
                self.compare(lambda out, o=operator, m=mine: o.process_batch(Batch(batch_of(m)), 0, out), s)

    def watermark(self, subtask, timestamp):
        operator = self.subtasks[subtask][0]
        self.model.advance(self.owned(subtask), timestamp)
        self.compare(lambda out: operator.process_watermark(Watermark(timestamp), out), subtask)

    def compare(self, call, subtask):
        """What one subtask emits is what the model has for its keys, those of a key in order."""
        out, keys = Out(), self.owned(subtask)
        call(out)
        for key in keys:
            of_key = [row for row in self.model.out if row[0] == key]
            assert sorted(map(repr, of_key)) == sorted(repr(row) for row in out.rows if row[0] == key)
            assert [r for r in self.model.late if r[0] == key] == [r for r in out.late if r[0] == key]
        self.model.out = [row for row in self.model.out if row[0] not in keys]
        self.model.late = [row for row in self.model.late if row[0] not in keys]

    def save(self):
        self.checkpoint += 1
        keyed, restored = [], []
        for operator, _ in self.subtasks:
            snapshot = operator.snapshot(Barrier(self.checkpoint), Out())
            restored += snapshot.operator
            for frozen in snapshot.keyed:
                assert frozen.copy_pages(1)
                frozen.durable({e.position: self.write(e) for e in frozen.encode()})
                keyed.append(frozen.snapshot())
        self.complete = ((keyed, restored), self.model.copy())
        for operator, _ in self.subtasks:
            operator.notify_complete(CommitPermit("j", "r", 1, self.checkpoint, self.checkpoint))

    def read(self, file):
        return part(self.files[file.path], file)

    def write(self, encoded):
        name = f"{self.attempt}/{len(self.files)}"
        self.files[name] = encoded.data
        return FileRef(path=name, length=len(encoded.data))

    def close(self):
        for _, store in self.subtasks:
            store.close()


class Context:
    """What the operator is opened with."""

    def __init__(self, spec, owned, store, restored):
        self.spec = type("Spec", (), spec)
        self.hash_range, self.keyed_state, self.restored = owned, store, restored
        self.limits = state_sizes.sizes()
        self.metrics, self.clock, self.input_schemas = OperatorMetrics(), ManualClock(), (SCHEMA,)


def batch_of(rows):
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 30)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 150)),
        st.tuples(st.just("save")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    max_size=40,
)
RULES = st.sampled_from(
    [
        (*trigger, purges, *evictor)
        for trigger in [("event", 0), ("count", 3), ("continuous", 40), ("delta", 6), ("quiet", 25)]
        for purges in (False, True)
        for evictor in [(None, 0), ("count", 2), ("time", 25), ("after", 1)]
    ]
)


@pytest.fixture
def in_pieces(monkeypatch):
    """No more than two keys come in together, and hardly any stays behind a batch."""
    state_sizes.given(monkeypatch, incoming_keys=2, many_changes=20, dead_keys=1)


@pytest.fixture
def leaving(monkeypatch, in_pieces):
    with keys_leave(monkeypatch, 1):
        yield


@pytest.fixture
def leaving_for_rocksdb(monkeypatch, in_pieces):
    keys_leave_for_rocksdb(monkeypatch, 1)


@pytest.mark.parametrize("lateness", [0, 60])
@pytest.mark.parametrize("window", [name for name in WINDOWS if "time_zone" not in WINDOWS[name]])
@examples(30)
@given(rule=RULES, operations=OPERATIONS)
def test_output_is_the_models(window, lateness, rule, operations):
    with tempfile.TemporaryDirectory() as folder:
        run(Job(folder, window, rule_of(window, rule), lateness), operations)


def rule_of(window, rule):
    return ("count", *rule[1:]) if window == "session" and rule[0] == "delta" else rule


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("lateness", [0, 60])
@pytest.mark.parametrize("window", [name for name in WINDOWS if "time_zone" not in WINDOWS[name]])
@examples(30)
@given(rule=RULES, operations=OPERATIONS)
def test_output_is_the_models_when_keys_leave_memory(window, lateness, rule, operations):
    with tempfile.TemporaryDirectory() as folder:
        run(Job(folder, window, rule_of(window, rule), lateness), operations)


@pytest.mark.usefixtures("leaving_for_rocksdb")
@examples(15)
@given(window=st.sampled_from(["tumbling", "sliding", "session", "global"]), rule=RULES, operations=OPERATIONS)
def test_output_is_the_models_when_keys_leave_for_rocksdb(window, rule, operations):
    with tempfile.TemporaryDirectory() as folder:
        run(Job(folder, window, rule_of(window, rule), 60), operations)


@pytest.mark.parametrize(("window", "base"), [("spring", SPRING), ("autumn", AUTUMN), ("gaps", AUTUMN)])
@examples(30)
@given(
    rule=RULES.filter(lambda rule: rule[0] in ("event", "count") and rule[3] != "time"),
    operations=OPERATIONS,
    lateness=st.sampled_from([0, 45 * MINUTE]),
)
def test_windows_of_a_wall_clock_are_the_models_while_the_clock_is_set(window, base, rule, operations, lateness):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, window, rule, lateness)
        job.base, job.unit = base * MINUTE, MINUTE
        run(job, operations)


def run(job, operations):
    """Do what is drawn, then let the end of time come."""
    now, marks = 0, {}
    for name, *arguments in operations:
        if name == "batch":
            now += 20
            job.batch(*arguments, now - 100)
        elif name == "watermark":
            subtask = arguments[0] % len(job.subtasks)
            marks[subtask] = max(marks.get(subtask, -400), now - 250 + arguments[1])
            job.watermark(subtask, job.base + marks[subtask] * job.unit)
        else:
            marks = {} if name == "restart" else marks
            getattr(job, name)(*arguments)
    for subtask in range(len(job.subtasks)):
        job.watermark(subtask, MAX_TIMESTAMP)
    job.close()


@pytest.mark.parametrize("shape", ["sliding", "session"])
def test_a_watermark_looks_at_the_windows_it_closes_however_many_are_open(shape, monkeypatch):
    sizes = (
        {"kind": "sliding", "size_us": 2000, "slide_us": 1} if shape == "sliding" else {"kind": "session", "gap_us": 1}
    )
    monkeypatch.setitem(WINDOWS, "many", sizes)
    monkeypatch.setitem(SHAPES, "many", ("global",))
    looked = []
    cleanup_time = WindowAssigner.cleanup_time

    def counted(self, window):
        looked.append(window)
        return cleanup_time(self, window)

    monkeypatch.setattr(WindowAssigner, "cleanup_time", counted)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, "many", ("event", 0, False, None, 0), 0)
        operator, out = job.subtasks[0][0], Out()
        times = range(2000) if shape == "sliding" else range(0, 6000, 3)
        rows = [{"k": "a", "v": 0, TS_COLUMN: time} for time in (times[:1] if shape == "sliding" else times)]
        operator.process_batch(Batch(batch_of(rows)), 0, out)
        looked.clear()
        for time in times[:200]:
            operator.process_watermark(Watermark(time), out)
        assert len(out.rows) == 200
        assert len(looked) < 200 * 8
        job.close()
