"""Values whose columns change from job to job: what is restored is what a model says, version after version."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.core.errors import StateMismatchError
from penstock.core.evolution import DEFAULT, WAS, default_text
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.log.segments import read_state

KEYS = pa.schema([pa.field("k", pa.int64())])
KINDS = (pa.int32(), pa.int64())


def field(name, kind, default, null, was=None):
    more = {} if default is None else {DEFAULT: default_text(default, kind)}
    return pa.field(name, kind, null, {**more, **({} if was is None else {WAS: was.encode()})})


class World:
    """One operator's state through versions of its job; the model holds rows by key and the fields' own values."""

    def __init__(self, harness):
        self.harness = harness
        #: name, type, default, whether it may be None
        self.fields = [["a", pa.int32(), 1, False]]
        self.model = {}
        self.snapshots = ()
        self.names = iter(f"n{i}" for i in range(1000))

    def change(self, step):
        """Change the fields; the model's rows follow."""
        what, place = step
        was = {}
        if what == "add" or (what == "drop" and len(self.fields) == 1):
            name = next(self.names) if place % 2 else f"z{place}"
            if name in [f[0] for f in self.fields]:
                return
            value = None if place == 3 else place
            self.fields.insert(place % (len(self.fields) + 1), [name, KINDS[place % 2], value, place > 2])
            for row in self.model.values():
                row[name] = value
        elif what == "drop":
            name = self.fields.pop(place % len(self.fields))[0]
            for row in self.model.values():
                del row[name]
        elif what == "widen":
            self.fields[place % len(self.fields)][1] = pa.int64()
        elif what == "null":
            name, _, default, null = chosen = self.fields[place % len(self.fields)]
            chosen[2:] = place if null and default is None else default, not null
            for row in self.model.values():
                if null and row[name] is None:
                    row[name] = chosen[2]
        elif what == "default":
            chosen = self.fields[place % len(self.fields)]
            chosen[2] = None if place > 4 else place
        elif what == "rename":
            chosen = self.fields[place % len(self.fields)]
            old, chosen[0] = chosen[0], next(self.names)
            was[chosen[0]] = old
            for row in self.model.values():
                row[chosen[0]] = row.pop(old)
        self.restore(was)

    def restore(self, was):
        store = self.harness.open(self.snapshots)
        self.rows = store.row_state(KEYS)
        self.table = self.rows.value("v", tuple(field(*f, was.get(f[0])) for f in self.fields))
        self.store = store

    def write(self, keys, number):
        batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
        slots = self.rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
        row = {f[0]: None if f[3] and number % 2 else number for f in self.fields}
        self.table.write(slots, [pa.array([row[f[0]]] * len(keys), f[1]) for f in self.fields])
        self.model.update({key: dict(row) for key in keys})

    def clear(self, keys):
        batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
        self.table.clear(self.rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy())
        for key in keys:
            self.model.pop(key, None)

    def freeze(self):
        self.snapshots = tuple(self.harness.upload(frozen) for frozen in self.store.freeze(1))
        self.store.completed(1)
        work = self.store.compaction()
        if work is not None:
            merged = work.run(lambda ref: self.harness.files[ref.path])
            self.store.compacted(work, self.harness.write(merged))

    def check(self):
        names = [f[0] for f in self.fields]
        (snapshot,) = self.snapshots
        found = {}
        for table in read_state(snapshot, lambda ref: self.harness.files[ref.path]):
            found |= {row["k"]: {name: row[name] for name in names} for row in table.to_pylist()}
        assert found == self.model
        keys = sorted(self.model)
        batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
        slots = self.rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
        columns = self.table.values(self.table.rows_of(slots))
        assert [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] == [
            self.model[key] for key in keys
        ]


STEP = st.tuples(st.sampled_from(["add", "drop", "widen", "rename", "null", "default", "none"]), st.integers(0, 7))
VERSION = st.tuples(
    STEP, st.lists(st.integers(0, 9), unique=True, max_size=5), st.lists(st.integers(0, 9), unique=True)
)


@examples(80)
@given(versions=st.lists(VERSION, min_size=1, max_size=12))
def test_any_number_of_versions(state, tmp_path_factory, versions):
    harness = type(state)(tmp_path_factory.mktemp("state"))
    world = World(harness)
    world.restore({})
    for number, (step, written, cleared) in enumerate(versions):
        world.write([0, *(k for k in written if k)], number)
        world.clear([key for key in cleared if key])
        world.freeze()
        world.change(step)
        world.freeze()
        world.check()
    for store in harness.stores:
        store.close()


def test_a_field_added_after_one_was_dropped_does_not_have_its_values(state):
    world = World(state)
    world.restore({})
    world.change(("add", 1))
    world.write([1, 2], 5)
    for step in (("drop", 1), ("none", 0), ("add", 1)):  # the one that is dropped had the highest id
        world.freeze()
        world.change(step)
    world.freeze()
    assert world.model == {key: {"a": 5, "n1": 1} for key in (1, 2)}
    world.check()


def test_a_change_that_cannot_be_names_the_state_and_the_way_out(state):
    world = World(state)
    world.restore({})
    world.write([1, 2], 5)
    world.freeze()
    world.fields[0][1] = pa.string()
    rows = state.open(world.snapshots).row_state(KEYS)
    with pytest.raises(StateMismatchError, match="state 'v' of op: a was int32 and is string") as caught:
        rows.value("v", (pa.field("a", pa.string(), nullable=False),))
    assert "another name" in caught.value.hint
