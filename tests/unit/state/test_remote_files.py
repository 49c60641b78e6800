"""Files that remote state still reads are those that the newest checkpoint names, whatever it was restored from."""

import pyarrow as pa
import pytest
from tests.property.harness.files import part
from tests.support.sizes import sizes, small_pieces

from penstock.config.settings import JobSettings
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.memory.budget import MemoryBudget
from penstock.state.memory.limits import PRODUCTION
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.state.tiers.remote_log import one_by_one

SPEC = PaneTableSpec(
    pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),), single_pane=True
)
KEYS = list(range(200))


class Job:
    """One subtask, and the files of its newest checkpoint alone: all others are deleted at once."""

    def __init__(self, state, local_bytes):
        self.state, self.local_bytes = state, local_bytes
        self.files, self.newest, self.number = {}, None, 0
        #: What the newest checkpoint names; files that none has named yet are nobody's to delete.
        self.named, self.deleted = set(), 0
        #: How many parts were read together, by call.
        self.together = []

    def open(self, backend):
        self.store = open_keyed_state(
            KeyedStateRequest(
                uid="op",
                snapshots=() if self.newest is None else (self.newest,),
                hash_range=ALL_HASHES,
                settings=JobSettings(
                    state_backend=backend, managed_memory_bytes=64 << 20, remote_local_bytes=self.local_bytes
                ),
                read=lambda file: part(self.files[file.path], file),
                directory=self.state.directory / backend,
                writer=f"run/v/0/{backend}",
                budget=MemoryBudget(64 << 20 if backend == "hashmap" else 50_000),
                limits=sizes(),
                gather=self.gather,
            )
        )
        self.state.stores.append(self.store)
        self.table = self.store.pane_table("panes", SPEC)

    def gather(self, work):
        self.together.append(len(work))
        return one_by_one(work)

    def write(self, encoded):
        self.number += 1
        self.files[str(self.number)] = bytes(encoded.data)
        return FileRef(path=str(self.number), length=len(encoded.data))

    def add(self, keys):
        self.state.update(self.table, keys, [0] * len(keys))

    def checkpoint(self):
        self.number += 1
        checkpoint_id = self.number
        (frozen,) = self.store.freeze(checkpoint_id)
        while not frozen.copy_pages(1):
            pass
        frozen.durable({e.position: self.write(e) for e in frozen.encode()})
        self.newest = frozen.snapshot()
        self.store.completed(checkpoint_id)
        names = {segment.file.path for segment in self.newest.segments}
        for path in self.named - names:
            del self.files[path]
            self.deleted += 1
        self.named = names

    def merge(self):
        job = self.store.compaction()
        if job is not None:
            encoded = job.run(lambda file: part(self.files[file.path], file))
            self.store.compacted(job, self.write(encoded))
        return job is not None

    def counts(self):
        return {key: total for key, (_, total) in self.state.rows(self.table, [0]).items()}


@pytest.mark.parametrize("local_bytes", [1, 1 << 50])
def test_a_reader_of_an_older_checkpoint_finds_all_it_names_while_newer_ones_come_and_go(state, local_bytes):
    job = Job(state, local_bytes)
    with small_pieces():
        job.open("hashmap")
        for first in range(4):
            job.add(KEYS[first::4])
            job.checkpoint()
        job.open("remote")
        expected = dict.fromkeys(KEYS, 1)
        merged = 0
        for number in range(3 * PRODUCTION.segments_per_tier):
            late = job.store.prefetch()  # begun before files are merged and deleted
            keys = KEYS[number :: 3 * PRODUCTION.segments_per_tier]
            job.add(keys)
            expected |= {key: expected[key] + 1 for key in keys}
            merged += job.merge()
            job.checkpoint()
            if late is not None and number % 2:
                try:
                    late.run()
                except KeyError:  # fetched anew from what took their place
                    continue
                late.install()
        assert merged
        assert job.deleted
        assert job.counts() == expected


@pytest.mark.usefixtures("deltas")
def test_the_background_reads_several_parts_together(state):
    job = Job(state, 1 << 50)
    with small_pieces():
        job.open("hashmap")
        for first in range(4):
            job.add(KEYS[first::4])
            job.checkpoint()
        job.open("remote")
        fetch = job.store.prefetch()
        job.together.clear()
        fetch.run()
        assert len(job.together) == 1
        assert job.together[0] >= 4


@pytest.mark.usefixtures("deltas")
def test_the_background_takes_the_newest_row_of_a_key(state):
    job = Job(state, 1 << 50)
    with small_pieces():
        job.open("hashmap")
        for _ in range(3):
            job.add(KEYS)
            job.checkpoint()
        job.open("remote")
        while (fetch := job.store.prefetch()) is not None:
            fetch.run()
            fetch.install()
        job.add(KEYS)
        assert job.counts() == dict.fromkeys(KEYS, 4)
