"""A job's folder with checkpoints of real state tables: windows, values, splits, and output not yet published."""

import io

import numpy as np
import pyarrow as pa
import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest, encode_manifest, key_of
from penstock.checkpoint.stores import checksum_of, open_store
from penstock.config.settings import JobSettings
from penstock.core.keygroup import hash_range_of
from penstock.core.snapshot import Committable, FileRef, OperatorStateSnapshot, SubtaskSnapshot
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import fixed_column, key_columns
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
from penstock.state.memory.budget import MemoryBudget
from penstock.state.memory.limits import PRODUCTION
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.task.checkpoint.savepoint_copy import write_savepoint

KEYS = pa.schema([pa.field("user_id", pa.int64())])
PANES = PaneTableSpec(KEYS, (AccumulatorSpec("sum_amount", "int64", "sum"),))
VALUES = (pa.field("orders", pa.int64()), pa.field("note", pa.string()))
PARALLELISM = 2


class Subtask:
    """One subtask's state of two operators."""

    def __init__(self, folder, store, number):
        self.number, self.store = number, store
        self.own = hash_range_of(number, PARALLELISM, 1024)
        self.states = [self._open(folder, uid) for uid in ("totals", "people")]
        self.panes = self.states[0].pane_table("panes", PANES)
        self.rows = self.states[1].row_state(KEYS)
        self.profile = self.rows.value("profile", VALUES)
        self.timers = self.rows.timers("event")
        self.files = 0

    def _open(self, folder, uid):
        return open_keyed_state(
            KeyedStateRequest(
                uid=uid, snapshots=(), hash_range=self.own, settings=JobSettings(),
                read=lambda ref: self.store.read(ref.path), directory=folder / f"work-{uid}-{self.number}",
                writer=f"r/v/{self.number}/0", budget=MemoryBudget(1 << 30),
                limits=PRODUCTION.changed(whole_rows=0),
            )
        )  # fmt: skip

    def mine(self, ids):
        batch = pa.record_batch({"user_id": pa.array(ids, pa.int64())})
        hashes = hash_columns(batch, ("user_id",))
        return (hashes >= self.own.low) & (hashes <= self.own.high)

    def hashed(self, ids):
        batch = pa.record_batch({"user_id": pa.array(ids, pa.int64())})
        return key_columns(batch, ("user_id",)), hash_columns(batch, ("user_id",))

    def add(self, ids, pane):
        amounts = fixed_column(pa.array(ids, pa.int64()))
        given = AccumulatorInput(amounts.values, amounts.bitmap, amounts.bit_offset)
        self.panes.update(*self.hashed(ids), np.full(len(ids), pane, np.int64), [given])

    def set(self, profiles):
        slots = self.rows.upsert(*self.hashed(list(profiles))).copy()
        arrays = [pa.array([value[i] for value in profiles.values()], field.type) for i, field in enumerate(VALUES)]
        self.profile.write(slots, arrays)

    def clear(self, ids):
        self.profile.clear(self.rows.upsert(*self.hashed(ids)).copy())

    def frozen(self):
        """Freeze, write, and return the snapshots."""
        found = []
        for state in self.states:
            for frozen in state.freeze():
                while not frozen.copy_pages(1):
                    pass
                files = {}
                for encoded in frozen.encode():
                    self.files += 1
                    path = f"data/r/{self.number}-{self.files}.pack"
                    self.store.put(path, b"before" + encoded.data)
                    data = encoded.data
                    files[encoded.position] = FileRef(path=path, offset=6, length=len(data), checksum=checksum_of(data))
                frozen.durable(files)
                found.append(frozen.snapshot())
        return tuple(found)

    def close(self):
        for state in self.states:
            state.close()


class Job:
    """A job's folder, and what its state is as a model."""

    def __init__(self, folder, name="job"):
        self.root, self.folder = folder, folder / name
        self.store = LocalStore(str(self.folder))
        self.subtasks = [Subtask(folder, self.store, number) for number in range(PARALLELISM)]
        self.panes, self.profiles, self.sequence = {}, {}, 0

    def add(self, ids, pane):
        for subtask in self.subtasks:
            subtask.add([i for i, mine in zip(ids, subtask.mine(ids), strict=True) if mine], pane)
        for i in ids:
            count, total = self.panes.get((i, pane), (0, 0))
            self.panes[i, pane] = count + 1, total + i

    def close_below(self, pane):
        for subtask in self.subtasks:
            subtask.panes.drop_below(pane)
        self.panes = {key: value for key, value in self.panes.items() if key[1] >= pane}

    def set(self, profiles):
        for subtask in self.subtasks:
            ids = list(profiles)
            subtask.set({i: profiles[i] for i, mine in zip(ids, subtask.mine(ids), strict=True) if mine})
        self.profiles.update(profiles)

    def clear(self, ids):
        for subtask in self.subtasks:
            subtask.clear([i for i, mine in zip(ids, subtask.mine(ids), strict=True) if mine])
        for i in ids:
            self.profiles.pop(i, None)

    def checkpoint(self, **more):
        """Append a checkpoint; return its manifest."""
        self.sequence += 1
        output = self.output()
        parts = [
            SubtaskSnapshot(
                vertex_id="v", subtask=s.number, keyed=s.frozen(),
                operator=(OperatorStateSnapshot(uid="orders", name="splits", mode="split", items=({"at": s.number},)),),
            )
            for s in self.subtasks
        ]  # fmt: skip
        fields = {
            "kind": "checkpoint", "sequence": self.sequence, "job_id": "0" * 32, "job_name": "job", "run_id": "r",
            "generation": 1, "nonce": str(self.sequence), "created_ms": 1_000 * self.sequence,
            "checkpoint_id": self.sequence, "key_groups": 1024, "subtasks": tuple(parts), "pending": (output,),
            "operators": {"orders": (2, "v"), "totals": (2, "v"), "people": (2, "v"), "out": (2, "v")},
        }  # fmt: skip
        return self.append(Manifest(**{**fields, **more}))

    def append(self, manifest):
        self.store.put(key_of(manifest.sequence), encode_manifest(manifest))
        return manifest

    def output(self):
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, KEYS) as file:
            file.write_batch(pa.record_batch({"user_id": pa.array([1, 2], pa.int64())}))
        data = sink.getvalue()
        path = f"pending/r/0-{self.sequence}.pack"
        self.store.put(path, data)
        ref = FileRef(path=path, length=len(data), checksum=checksum_of(data))
        return Committable(
            id=f"out/r/0/{self.sequence}", uid="out", run_id="r", subtask=0, checkpoint_id=self.sequence,
            files=(ref,), rows=2, size_bytes=len(data),
        )  # fmt: skip

    def savepoint(self, manifest, folder):
        """Write the checkpoint as a savepoint; return its folder."""
        write_savepoint(manifest, open_store(f"{self.root}/job"), open_store(str(folder)))
        return str(folder)

    def close(self):
        for subtask in self.subtasks:
            subtask.close()


@pytest.fixture
def empty_job(tmp_path):
    found = Job(tmp_path)
    yield found
    found.close()


@pytest.fixture
def job(empty_job):
    """Two checkpoints: keys that are written twice, one that is removed, a pane that is closed."""
    job = empty_job
    job.add(list(range(300)), 0)
    job.add(list(range(200)), 10)
    job.set({i: (i, f"n{i}") for i in range(250)})
    job.checkpoint()
    job.close_below(10)
    job.add(list(range(100)), 10)
    job.add(list(range(50)), 20)
    job.set({i: (-i, None) for i in range(40)})
    job.clear([7, 249])
    job.checkpoint()
    return job
