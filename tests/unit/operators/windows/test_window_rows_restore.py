"""Windows that keep their rows, restored under another definition and on a clock that was set back."""

from types import SimpleNamespace

import cloudpickle
import msgspec
import pyarrow as pa
import pytest
from tests.support.sizes import sizes
from tests.unit.graph.test_state_check import job, snapshot

import penstock as ps
from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Barrier, Batch
from penstock.core.errors import StateMismatchError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import FileRef
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.state_check import check_states
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.snapshots.access.declared import declared_states
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field(TS_COLUMN, pa.int64(), nullable=False)])
PLAIN = ROWS.remove(1)
OUTPUT = pa.schema([("k", pa.int64()), ("start", pa.int64()), ("rows", pa.int64())])
TUMBLING = {"kind": "tumbling", "size_us": 10_000_000, "slide_us": 10_000_000, "offset_us": 0}
CLOCK = TUMBLING | {"time": "processing"}
DAY_MS = 86_400_000


def count(key, window, rows):
    yield {"k": key, "start": window.start, "rows": len(rows)}


def spec_of(window, trigger=None, **config):
    timed = window.get("time") != "processing"
    trigger = trigger or (ps.trigger.event_time() if timed else ps.trigger.processing_time())
    return OperatorSpec(
        uid="w",
        name="w",
        kind="window_rows",
        stateful=True,
        config={"key": ["k"], "window": window, "mode": "apply", **config},
        payload=cloudpickle.dumps((trigger, None, count, None)),
        output_schema=schema_to_text(OUTPUT),
    )


class Clock:
    """Somebody sets it, also back."""

    def __init__(self, wall=0):
        self.wall = wall

    def now_ms(self):
        return self.wall


class Out:
    def __init__(self):
        self.rows = []

    def batch(self, batch):
        self.rows += [(row["start"] // 1_000_000, row["rows"]) for row in batch.data.to_pylist()]


class Attempt:
    """The operator between a restore and the next."""

    def __init__(self, folder, spec, clock, saved=((), ())):
        self.schema = PLAIN if spec.config["window"].get("time") == "processing" else ROWS
        self.files = {}
        self.store = open_keyed_state(
            KeyedStateRequest(
                uid="w",
                snapshots=saved[0],
                hash_range=ALL_HASHES,
                settings=JobSettings(),
                read=lambda file: file.inline,
                directory=folder,
                writer="w",
                budget=MemoryBudget(1 << 30),
                limits=sizes(),
            )
        )
        self.operator, self.clock = create_operator("window_rows"), clock
        self.operator.open(
            SimpleNamespace(
                spec=spec,
                hash_range=ALL_HASHES,
                metrics=OperatorMetrics(),
                input_schemas=(self.schema,),
                keyed_state=self.store,
                limits=sizes(),
                restored=saved[1],
                clock=clock,
            )
        )

    def row(self):
        out = Out()
        columns = {name: [1] for name in self.schema.names}
        self.operator.process_batch(Batch(pa.RecordBatch.from_pydict(columns, schema=self.schema)), 0, out)
        return out.rows

    def timers(self):
        """Do what the task does for timers at this time of the clock."""
        out, now = Out(), self.clock.now_ms()
        due = self.operator.next_timer_ms
        if due is not None and due <= now:
            self.operator.process_time(now, out)
        return out.rows

    def saved(self):
        taken = self.operator.snapshot(Barrier(1), Out())
        for frozen in taken.keyed:
            assert frozen.copy_pages(1)
            files = {e.position: FileRef(inline=bytes(e.data), length=len(e.data)) for e in frozen.encode()}
            frozen.durable(files)
        return tuple(frozen.snapshot() for frozen in taken.keyed), taken.operator


def restored(folder, before, after):
    first = Attempt(folder / "1", before, Clock())
    first.row()
    saved = first.saved()
    return lambda saved=saved: Attempt(folder / "2", after, Clock(), saved), saved


OTHERS = {
    "size": (TUMBLING, TUMBLING | {"size_us": 20_000_000, "slide_us": 20_000_000}, "size 10 s", "size 20 s"),
    "by a microsecond": (TUMBLING, TUMBLING | {"size_us": 10_000_001, "slide_us": 10_000_001}, "10 s", "10.000001 s"),
    "slide": (TUMBLING, TUMBLING | {"kind": "sliding", "slide_us": 5_000_000}, "tumbling, size 10 s", "slide 5 s"),
    "offset": (TUMBLING, TUMBLING | {"offset_us": 1_000_000}, "tumbling, size 10 s", "offset 1 s"),
    "gap": ({"kind": "session", "gap_us": 1_000_000}, {"kind": "session", "gap_us": 2_000_000}, "gap 1 s", "gap 2 s"),
    "kind": (TUMBLING, {"kind": "global"}, "tumbling, size 10 s", "global"),
    "zone": (TUMBLING, TUMBLING | {"time_zone": "Europe/Berlin"}, "size 10 s", "Europe/Berlin"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_windows_of_another_definition_are_refused_by_the_check_and_by_a_restore(name, tmp_path):
    before, after, was, now = OTHERS[name]
    restore, (keyed, _) = restored(tmp_path, spec_of(before), spec_of(after))
    with pytest.raises(StateMismatchError, match="give the operator a new uid") as refused:
        restore()
    found = verdict(keyed, after)
    assert found.verdict == "blocked"
    for text in (str(refused.value), found.reason):
        assert was in text.partition("the job has")[0]
        assert now in text.partition("the job has")[2]


def verdict(keyed, window):
    spec = spec_of(window)
    states = {name: schema_to_text(s) for name, s in declared_states(spec, (ROWS,), JobSettings()).items()}
    part = msgspec.structs.replace(snapshot()[0], keyed=keyed, operator=())
    found = check_states(job(msgspec.structs.replace(spec, states=states)), (part,))
    return next(verdict for verdict in found if verdict.state == "windows")


def test_windows_written_in_another_way_go_on_and_so_do_triggers_and_lateness(tmp_path):
    same = TUMBLING | {"kind": "sliding"}
    restore, (keyed, _) = restored(tmp_path, spec_of(TUMBLING), spec_of(same, ps.trigger.count(1)))
    assert restore().row() == [(0, 2)]
    assert verdict(keyed, same).verdict == "same"


def test_a_snapshot_that_says_nothing_of_its_windows_is_restored(tmp_path):
    restore, (keyed, operator) = restored(tmp_path, spec_of(TUMBLING), spec_of(TUMBLING, ps.trigger.count(1)))

    def of_before(state):
        return msgspec.structs.replace(state, schema=schema_to_text(schema_from_text(state.schema).remove_metadata()))

    old = tuple(of_before(state) for state in keyed)
    assert restore((old, operator)).row() == [(0, 2)]
    assert verdict(old, TUMBLING | {"offset_us": 1_000_000}).verdict == "same"


def test_a_window_that_has_fired_is_not_entered_again_on_a_clock_that_was_set_back(tmp_path):
    first = Attempt(tmp_path / "1", spec_of(CLOCK), Clock(9_000))
    first.row()
    first.clock.wall = 11_000
    assert first.timers() == [(0, 1)]
    second = Attempt(tmp_path / "2", spec_of(CLOCK), Clock(9_500), first.saved())
    second.row()
    for now in (9_999, 10_000, 19_998):
        second.clock.wall = now
        assert second.timers() == []
    second.clock.wall = 20_000
    assert second.timers() == [(10, 1)]


def test_a_window_that_was_due_fires_at_once_on_a_clock_that_was_set_back(tmp_path):
    first = Attempt(tmp_path / "1", spec_of(CLOCK), Clock(9_000))
    first.row()
    first.clock.wall = 11_000
    first.row()
    second = Attempt(tmp_path / "2", spec_of(CLOCK), Clock(5_000), first.saved())
    assert second.timers() == [(0, 1)]
    assert second.timers() == []


def test_a_clock_that_ran_far_ahead_counts_for_a_day(tmp_path):
    first = Attempt(tmp_path / "1", spec_of(CLOCK), Clock(400 * DAY_MS))
    first.row()
    second = Attempt(tmp_path / "2", spec_of(CLOCK), Clock(0), first.saved())
    second.row()
    second.clock.wall = DAY_MS + 10_000
    assert second.timers() == [(DAY_MS // 1000, 1)]
