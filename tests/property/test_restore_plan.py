"""Through any chain of rescales, every key hash has exactly one owner, and so has every row of every file."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.config.settings import JobSettings
from penstock.core.keygroup import HASH_MAX, HASH_MIN, hash_range_of
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot, Tombstone
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.graph.restore_plan import assign_state

GROUPS = st.sampled_from([1, 2, 3, 7, 128, 1024])
hashes = st.integers(HASH_MIN, HASH_MAX)


def graph(parallelism, key_groups):
    spec = OperatorSpec(uid="w", name="w", kind="window_aggregate", stateful=True)
    vertex = JobVertex(id="v", name="w", operators=(spec,), parallelism=parallelism)
    return JobGraph(name="j", vertices=(vertex,), edges=(), settings=JobSettings(key_groups=key_groups))


@st.composite
def files(draw):
    """Segments of a job's only subtask: anywhere in the hash space, overlapping as they like."""
    made = []
    for position in range(draw(st.integers(0, 4))):
        low, high = sorted((draw(hashes), draw(hashes)))
        made.append(
            Segment(
                file=FileRef(path=str(position)),
                position=position,
                writer="w",
                rows=1,
                hash_min=low,
                hash_max=high,
                namespace_min=0,
                namespace_max=0,
            )
        )
    return tuple(made)


@st.composite
def rescales(draw):
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        key_groups = draw(GROUPS)
        steps.append((draw(st.integers(1, min(key_groups, 9))), key_groups))
    return steps


def step(snapshots, parallelism, key_groups):
    """Restore at another parallelism and take a snapshot at once: what a subtask was given is what it has."""
    plan = assign_state(graph(parallelism, key_groups), snapshots)
    return tuple(
        SubtaskSnapshot(vertex_id="v", subtask=i, keyed=tuple(k for r in plan.of("v", i) for k in r.keyed))
        for i in range(parallelism)
    )


@given(files=files(), steps=rescales(), probes=st.lists(hashes, min_size=1, max_size=20))
def test_every_hash_and_every_row_has_exactly_one_owner(files, steps, probes):
    stone = Tombstone(position=9, hash_low=HASH_MIN, hash_high=HASH_MAX, namespace_low=0, namespace_high=0)
    everything = KeyedStateSnapshot(
        uid="w", state="p", schema="", hash_low=HASH_MIN, hash_high=HASH_MAX, segments=files, tombstones=(stone,)
    )
    snapshots = (SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(everything,)),)
    edges = [h for f in files for h in (f.hash_min, f.hash_max)]
    for parallelism, key_groups in steps:
        snapshots = step(snapshots, parallelism, key_groups)
        borders = [
            h for i in range(parallelism) for r in [hash_range_of(i, parallelism, key_groups)] for h in (r.low, r.high)
        ]
        for probe in [*probes, *edges, *borders]:
            check(snapshots, files, probe, parallelism, key_groups)


def check(snapshots, files, probe, parallelism, key_groups):
    owners = [(s.subtask, k) for s in snapshots for k in s.keyed if k.hash_low <= probe <= k.hash_high]
    assert len(owners) == 1
    subtask, state = owners[0]
    assert probe in hash_range_of(subtask, parallelism, key_groups)
    read = sorted(
        segment.file.path
        for s in snapshots
        for k in s.keyed
        for segment in k.segments
        if max(segment.hash_min, segment.clip_low) <= probe <= min(segment.hash_max, segment.clip_high)
    )
    assert read == sorted(f.file.path for f in files if f.hash_min <= probe <= f.hash_max)
    assert [t.position for t in state.tombstones if t.hash_low <= probe <= t.hash_high] == [9]
    for s in snapshots:
        for k in s.keyed:
            own = hash_range_of(s.subtask, parallelism, key_groups)
            for stone in k.tombstones:
                assert own.low <= stone.hash_low <= stone.hash_high <= own.high
            for segment in k.segments:
                assert own.low <= segment.clip_low <= segment.clip_high <= own.high
