"""What windows read of their state in the object store: the keys that come, and those that a watermark closes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import cloudpickle
import pyarrow as pa
import pytest
from tests.property.harness.files import PlainStore, part
from tests.property.harness.functions import spec_of_function
from tests.support.sizes import sized, sizes, small_pieces

import penstock as ps
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.state.tiers import remote_panes as remote
from penstock.state.tiers.rocksdb import LocalBytes

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field(TS_COLUMN, pa.int64(), nullable=False)])
OUTPUT = pa.schema([("k", pa.int64()), ("n", pa.int64())])
KEYS, GAP = 324, 7
#: Keys that are due before the others.
MOST = 210
COUNT = [{"fn": "count", "column": None, "alias": "n"}]
KINDS = {
    "window_rows": {"window": {"kind": "session", "gap_us": GAP}, "mode": "apply"},
    "session_aggregate": {"window": {"kind": "session", "gap_us": GAP}, "aggregates": COUNT},
}
#: Of tables of panes: regions are in files of their own, or in one store.
TABLES = {
    "running_aggregate": {"aggregates": COUNT},
    "window_aggregate": {"window": {"kind": "tumbling", "size_us": 10 * KEYS}, "aggregates": COUNT},
}
HOUR_MS = 3_600_000
TTL = {"duration_us": HOUR_MS * 1000, "on_read": False, "return_expired": False}


def count(key, window, rows):
    del window
    yield {"k": key, "n": len(rows)}


class Counted(NamedTuple):
    k: int
    n: int


class Counts(ps.KeyedProcessFunction):
    n: ps.ValueState[int] = ps.value_state(ttl="1h")

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Counted]:
        self.n.update(1 + (self.n.value() or 0))
        yield Counted(row.k, self.n.value())


class Out:
    def __init__(self):
        self.rows = []

    def batch(self, batch):
        self.rows += [(row["k"], row["n"]) for row in batch.data.to_pylist()]

    def watermark(self, watermark):
        pass


class Job:
    """One subtask, and how many bytes of row groups it has read."""

    def __init__(self, folder, kind, **config):
        self.folder, self.kind, self.files, self.bytes, self.attempt = folder, kind, {}, 0, 0
        self.saved, self.clock = ((), ()), ManualClock()
        self.config = {"key": ["k"], **(KINDS | TABLES).get(kind, {}), **config}

    @property
    def spec(self):
        if self.kind == "process":
            return spec_of_function(Counts(), ROWS)
        functions = (ps.trigger.event_time(), None, count, None)
        payload, output = cloudpickle.dumps(functions), schema_to_text(OUTPUT)
        return SimpleNamespace(uid="w", config=self.config, payload=payload, output_schema=output)

    def open(self, backend, local_bytes=1 << 30):
        self.attempt += 1
        store = open_keyed_state(
            KeyedStateRequest(
                uid="w",
                snapshots=self.saved[0],
                hash_range=ALL_HASHES,
                settings=JobSettings(state_backend=backend, remote_local_bytes=local_bytes),
                read=self.read,
                directory=self.folder / str(self.attempt),
                writer=f"run/v/0/{self.attempt}",
                budget=MemoryBudget(1 << 30),
                limits=sizes(),
            )
        )
        self.store = store
        self.operator = create_operator(self.kind)
        self.operator.open(
            SimpleNamespace(
                spec=self.spec,
                job_name="j",
                subtask=0,
                parallelism=1,
                hash_range=ALL_HASHES,
                metrics=OperatorMetrics(),
                input_schemas=(ROWS,),
                keyed_state=store,
                limits=sizes(),
                restored=self.saved[1],
                clock=self.clock,
            )
        )

    def read(self, file):
        self.bytes += 0 if file.checksum else file.length
        return part(self.files[file.path], file)

    def rows(self, keys, time):
        out = Out()
        data = pa.RecordBatch.from_pydict({"k": keys, TS_COLUMN: [time(key) for key in keys]}, schema=ROWS)
        self.operator.process_batch(Batch(data), 0, out)
        return out.rows

    def watermark(self, time):
        out = Out()
        self.operator.process_watermark(Watermark(time), out)
        return out.rows

    def save(self):
        taken = self.operator.snapshot(Barrier(1), Out())
        for frozen in taken.keyed:
            assert frozen.copy_pages(1 << 20)
            frozen.durable({e.position: self.write(e) for e in frozen.encode()})
        self.saved = tuple(frozen.snapshot() for frozen in taken.keyed), taken.operator

    def write(self, encoded):
        self.files[str(len(self.files))] = bytes(encoded.data)
        return FileRef(path=str(len(self.files) - 1), length=len(encoded.data))

    @property
    def size(self):
        return sum(s.file.length - s.footer_length for state in self.saved[0] for s in state.segments)


def due(key):
    """One key after the other, in no order of their hashes."""
    return 10 * key


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("penstock.state.state_backend.StateBackend.open_store", lambda store, name: PlainStore())
    with small_pieces(), sized(regions=32):
        yield


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_reads_the_keys_that_come_and_those_that_are_due(kind, tmp_path):
    job = Job(tmp_path, kind)
    job.open("remote")
    job.rows(list(range(KEYS)), due)
    job.save()
    job.open("remote")
    assert job.bytes == 0
    job.rows([KEYS // 2], due)
    one = job.bytes
    assert 0 < one < job.size / 20
    assert job.watermark(due(5)) == [(key, 1) for key in range(5)]
    few = job.bytes - one
    assert 0 < few < job.size / 6
    assert job.watermark(due(5) + 1) == []
    assert job.bytes == one + few, "nothing more is due"
    assert sorted(job.watermark(due(KEYS))) == [(key, 1 + (key == KEYS // 2)) for key in range(5, KEYS)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_from_one_backend_to_another_and_back(kind, backend, tmp_path):
    """Sessions that were made while nobody had to know when they are due come out at their time nevertheless."""
    job = Job(tmp_path, kind)
    for number, where in enumerate(("remote", backend, "remote", backend)):
        job.open(where)
        job.rows(list(range(number, KEYS, 4)), due)
        job.rows(list(range(KEYS // 2, KEYS, 6)), lambda key, early=number: due(key) - early)
        assert job.watermark(-100 + number) == []
        job.save()
    rows = {key: 1 + 4 * (key >= KEYS // 2 and key % 6 == 0) for key in range(KEYS)}
    job.open("remote")
    assert sorted(job.watermark(due(MOST))) == sorted(rows.items())[:MOST]
    job.save()
    job.open("remote")
    assert sorted(job.watermark(due(KEYS))) == sorted(rows.items())[MOST:]


@pytest.mark.usefixtures("small")
def test_of_a_batch_of_all_keys_a_region_is_on_the_local_disk_at_a_time(tmp_path, monkeypatch):
    sizes, fetched, stored = [], [], LocalBytes.add
    job = Job(tmp_path, "window_rows")
    job.open("remote")
    job.rows(list(range(KEYS)), due)
    job.save()
    job.open("remote")

    def counted(local, hashes, added):
        stored(local, hashes, added)
        sizes.append(int(local.sizes.sum()))
        fetched.extend(size for size in added.tolist() if size > 0)

    monkeypatch.setattr(LocalBytes, "add", counted)
    job.rows(list(range(KEYS)), due)
    assert len(fetched) >= KEYS
    assert max(sizes) < sum(fetched) / 8


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", TABLES)
def test_of_a_batch_of_all_keys_of_a_table_a_region_is_on_the_local_disk_at_a_time(kind, tmp_path, monkeypatch):
    job, keys = Job(tmp_path, kind), list(range(KEYS))
    job.open("remote")
    job.rows(keys, due)
    job.save()
    stored, most = remote.RemotePanes.put_fetched, {}
    for local_bytes in (1 << 50, 1):
        sizes = []

        def measured(rows, merged, pieces, sizes=sizes):
            stored(rows, merged, pieces)
            sizes.append(int(rows.local_bytes.sum()))

        monkeypatch.setattr(remote.RemotePanes, "put_fetched", measured)
        with sized(few_rows=KEYS):  # of all of them at once
            job.open("remote", local_bytes)
        out = job.rows(keys, due)
        most[local_bytes] = max(sizes)
        out += job.watermark(10 * KEYS)  # a window fetches what it fires
        assert sorted(out) == [(key, 2) for key in keys]
    assert 0 < most[1] < most[1 << 50] / 8


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("kind", "config"), [("running_aggregate", {"ttl": TTL}), ("process", {})])
def test_what_a_clock_far_ahead_has_written_counts_as_a_day_ahead_when_it_is_fetched(kind, config, tmp_path):
    job, keys = Job(tmp_path, kind, **config), list(range(KEYS))
    job.clock.advance(10_000 * HOUR_MS)
    job.open("remote")
    job.rows(keys, due)
    job.save()
    job.clock = ManualClock()
    job.open("remote")
    while (fetch := job.store.prefetch()) is not None:
        fetch.run()
        fetch.install()
    job.clock.advance(25 * HOUR_MS - 1)
    assert sorted(job.rows(keys[::2], due)) == [(key, 2) for key in keys[::2]]
    job.clock.advance(1)
    assert sorted(job.rows(keys[1::2], due)) == [(key, 1) for key in keys[1::2]]
