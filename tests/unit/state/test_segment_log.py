"""The segment log: every interleaving of freezes, uploads and checkpoints, then its rules one by one."""

import copy
from collections import Counter

import pytest

from penstock.core.keygroup import ALL_HASHES, HashRange
from penstock.core.snapshot import FileRef, Segment
from penstock.state.log.segment_log import LAST_TIER, TIERS, SegmentLog
from penstock.state.memory.limits import PRODUCTION

CHECKPOINTS = 3
CONCURRENT = 2


def segment(position, low=0, high=0, **fields):
    about = {"rows": 1, "hash_min": 0, "hash_max": 9, "namespace_min": low, "namespace_max": high, "writer": "w"}
    return Segment(position=position, **{"file": FileRef(path=str(position)), **about, **fields})


class World:
    """A subtask that writes one row (namespace = number of the freeze) before every freeze, and drops namespace 1 once.

    The truth is the set of rows at each barrier; what an ack names must give exactly these.
    """

    def __init__(self):
        self.log = SegmentLog(ALL_HASHES)
        self.rows = frozenset()
        self.written = {}
        self.freezes = 0
        self.dropped = False
        self.open = {}
        self.acked = {}
        self.complete = ((), (), frozenset())
        self.restarts = 0

    def events(self):
        if self.freezes < CHECKPOINTS and len(self.open) + len(self.acked) < CONCURRENT:
            yield ("freeze",)
        for number, (view, _) in self.open.items():
            if view.missing:
                yield "uploaded", number
                if len(view.missing) > 1:
                    yield "half", number
            else:
                yield "ack", number
            yield "abort", number
        for number in self.acked:
            yield "complete", number
            yield "abort", number
        if not self.dropped and self.freezes:
            yield ("drop",)
        if self.restarts < 1 and self.freezes:
            yield ("restart",)

    def freeze(self):
        self.freezes += 1
        position = self.log.next_position()
        self.log.append(position)
        self.written[position] = self.freezes
        self.rows |= {self.freezes}
        self.open[self.freezes] = (self.log.view(), self.rows)

    def uploaded(self, number):
        for position in self.open[number][0].missing:
            self.store(position)

    def half(self, number):
        """The first file is up, then the upload fails: the other one is offered again."""
        self.store(self.open[number][0].missing[0])

    def store(self, position):
        namespace = self.written[position]
        self.log.uploaded(position, segment(position, namespace, namespace))

    def ack(self, number):
        view, rows = self.open.pop(number)
        segments, tombstones = view.named()
        assert visible(segments, tombstones) == rows
        self.acked[number] = (view, segments, tombstones, rows)

    def complete_(self, number):
        view, segments, tombstones, rows = self.acked.pop(number)
        self.log.completed(view)
        self.complete = (segments, tombstones, rows)
        for older in [n for n in (*self.open, *self.acked) if n < number]:
            self.abort(older)

    def abort(self, number):
        self.open.pop(number, None)
        self.acked.pop(number, None)

    def drop(self):
        self.dropped = True
        self.log.add_tombstone(ALL_HASHES, 0, 1)
        self.rows -= {1}

    def restart(self):
        self.restarts += 1
        segments, tombstones, self.rows = self.complete
        self.dropped = 1 not in self.rows and self.dropped
        self.open, self.acked = {}, {}
        self.log = SegmentLog(ALL_HASHES)
        self.log.restore(segments, tombstones)
        assert visible(segments, tombstones) == self.rows

    def signature(self):
        entries = tuple((e.position, e.segment is not None) for e in self.log.entries)
        pending = tuple(sorted((n, v.missing, r) for n, (v, r) in self.open.items()))
        done = tuple(sorted(self.acked))
        stones = tuple(t.position for t in self.log.tombstones)
        return entries, stones, pending, done, self.rows, self.freezes, self.restarts, self.complete[2], self.dropped


def visible(segments, tombstones):
    return frozenset(
        s.namespace_min
        for s in segments
        if not any(
            s.position < t.position and t.namespace_low <= s.namespace_min <= t.namespace_high for t in tombstones
        )
    )


def test_every_interleaving_names_the_state_at_the_barrier():
    seen, stack, counts = set(), [World()], Counter()
    while stack:
        world = stack.pop()
        for name, *arguments in world.events():
            counts[name] += 1
            after = copy.deepcopy(world)
            getattr(after, "complete_" if name == "complete" else name)(*arguments)
            if after.signature() not in seen:
                seen.add(after.signature())
                stack.append(after)
    assert len(seen) > 500
    assert all(counts[n] > 20 for n in ("freeze", "uploaded", "half", "ack", "complete", "abort", "drop", "restart"))


def filled(count, tier=0, **fields):
    log = SegmentLog(ALL_HASHES)
    for _ in range(count):
        add(log, tier=tier, **fields)
    return log


def add(log, **fields):
    position = log.next_position()
    log.append(position)
    log.uploaded(position, segment(position, **fields))
    return position


def test_an_ack_before_its_segments_are_durable_is_refused():
    log = SegmentLog(ALL_HASHES)
    log.append(log.next_position())
    view = log.view()
    with pytest.raises(RuntimeError, match="not durable"):
        view.named()
    log.uploaded(1, segment(1))
    assert [s.position for s in view.named()[0]] == [1]


def test_a_second_upload_changes_nothing():
    log = filled(1)
    log.uploaded(1, segment(1, rows=99))
    assert log.view().named()[0][0].rows == 1


def test_positions_go_on_above_what_was_restored():
    log = SegmentLog(ALL_HASHES)
    log.restore([segment(7), segment(3)], [])
    log.add_tombstone(ALL_HASHES, 5, 6)
    assert log.next_position() == 9
    assert [e.position for e in log.entries] == [3, 7]


def test_segments_wholly_under_a_tombstone_are_dropped_and_then_the_tombstone():
    log = SegmentLog(ALL_HASHES)
    add(log, low=0, high=9)
    add(log, low=5, high=20)
    before = log.view()
    log.add_tombstone(ALL_HASHES, 0, 9)
    assert [e.position for e in log.entries] == [2]
    assert [t.position for t in log.tombstones] == [3]
    log.add_tombstone(ALL_HASHES, 0, 20)
    assert log.entries == []
    assert log.tombstones == ()
    assert [s.position for s in before.named()[0]] == [1, 2]


def test_what_a_tombstone_covered_before_it_was_durable_is_dropped_as_soon_as_it_is():
    """No later view names it: once older checkpoints are gone, so is its file."""
    log = SegmentLog(ALL_HASHES)
    log.append(log.next_position())
    before = log.view()
    log.add_tombstone(ALL_HASHES, 0, 9)
    assert [e.position for e in log.entries] == [1]
    log.uploaded(1, segment(1, low=0, high=9))
    assert log.entries == []
    assert log.tombstones == ()
    assert [s.position for s in before.named()[0]] == [1]


def test_a_tombstone_hides_its_writers_range_alone():
    log = SegmentLog(HashRange(0, 4))
    log.restore([segment(1, hash_min=0, hash_max=9, clip_low=0, clip_high=4)], [])
    log.add_tombstone(HashRange(0, 4), 0, 9)
    assert log.entries == []
    log.restore([segment(1, hash_min=0, hash_max=9)], [])
    log.add_tombstone(HashRange(0, 4), 0, 9)
    assert len(log.entries) == 1


def test_only_committed_segments_are_compacted():
    log = filled(PRODUCTION.segments_per_tier)
    assert log.compaction() is None
    view = log.view()
    add(log)
    log.completed(view)
    inputs, tier = log.compaction()
    assert [s.position for s in inputs] == list(range(1, PRODUCTION.segments_per_tier + 1))
    assert tier == 1
    assert log.compaction() is None, "one at a time"


def test_a_merged_segment_replaces_its_inputs_in_later_views_only():
    log = filled(PRODUCTION.segments_per_tier)
    view = log.view()
    log.completed(view)
    add(log)
    inputs, tier = log.compaction()
    assert log.is_oldest(inputs)
    log.compacted(inputs, segment(inputs[-1].position, tier=tier))
    assert [(s.position, s.tier) for s in log.view().named()[0]] == [(8, 1), (9, 0)]
    assert len(view.named()[0]) == PRODUCTION.segments_per_tier


def restored(hashes, length=PRODUCTION.sorted_run_bytes, tier=LAST_TIER):
    """Return the log of a restored savepoint: a file for each lowest and highest hash."""
    log = SegmentLog(ALL_HASHES)
    files = [FileRef(path=str(number), length=length) for number in range(len(hashes))]
    parts = [
        segment(number, file=file, hash_min=low, hash_max=high, tier=tier)
        for number, (file, (low, high)) in enumerate(zip(files, hashes, strict=True), 1)
    ]
    log.restore(parts, [])
    log.completed(log.view())
    return log


ASCENDING = [(10 * n, 10 * n + 9) for n in range(3 * PRODUCTION.segments_per_tier)]


def test_large_files_of_a_savepoint_are_one_sorted_run():
    assert restored(ASCENDING).compaction() is None
    assert restored(ASCENDING, tier=0).compaction() is None


@pytest.mark.parametrize(
    ("hashes", "length"),
    [
        (ASCENDING, PRODUCTION.sorted_run_bytes - 1),
        (ASCENDING[::-1], PRODUCTION.sorted_run_bytes),
        ([(low, high + 1) for low, high in ASCENDING], PRODUCTION.sorted_run_bytes),
    ],
)
def test_small_descending_or_overlapping_files_are_runs_of_their_own(hashes, length):
    inputs, tier = restored(hashes, length).compaction()
    assert (len(inputs), tier) == (len(hashes), LAST_TIER)


def test_the_longest_sorted_run_says_how_many_keys_there_are_at_least():
    rows = sum(s.rows for s in (e.segment for e in restored(ASCENDING).entries))
    assert restored(ASCENDING).keys == rows > 1
    assert restored([*ASCENDING, (0, 9)]).keys == rows
    assert restored(ASCENDING[::-1]).keys == 1
    assert SegmentLog(ALL_HASHES).keys == 0


def test_a_segment_of_several_namespaces_joins_no_runs():
    log = SegmentLog(ALL_HASHES)
    rows = [segment(n, rows=10, hash_min=low, hash_max=9) for n, low in ((1, 0), (3, 5))]
    between = segment(2, rows=10, hash_min=0, hash_max=4, namespace_max=7)
    log.restore([*rows, between], [])
    assert log.keys == 10


def test_changes_after_a_savepoint_are_merged_without_it():
    log = restored(ASCENDING)
    for _ in range(PRODUCTION.segments_per_tier):
        add(log)
    log.completed(log.view())
    inputs, tier = log.compaction()
    assert [s.position for s in inputs] == [len(ASCENDING) + 1 + n for n in range(PRODUCTION.segments_per_tier)]
    assert tier == 1
    assert not log.is_oldest(inputs)


def test_a_compaction_that_was_given_up_is_offered_again():
    log = filled(PRODUCTION.segments_per_tier)
    log.completed(log.view())
    inputs, _ = log.compaction()
    log.compacted(inputs, None)
    assert log.compaction()[0] == inputs


def test_a_tombstone_lives_on_while_a_compaction_may_bring_its_rows_back():
    log = filled(PRODUCTION.segments_per_tier, low=1, high=1)
    log.completed(log.view())
    inputs, _ = log.compaction()
    log.add_tombstone(ALL_HASHES, 0, 5)
    assert log.entries == []
    assert len(log.tombstones) == 1
    log.compacted(inputs, segment(8, low=1, high=1, tier=1))
    assert log.view().named() == ((), ())


def test_merging_takes_all_segments_of_one_position():
    """After a rescale two writers' segments may share a position: the merged one must not tie with newer rows."""
    log = SegmentLog(ALL_HASHES)
    half = {"a": {"clip_low": 0, "clip_high": 4}, "b": {"clip_low": 5, "clip_high": 9}}
    log.restore([segment(p, writer=w, **half[w]) for p in range(1, 5) for w in "ab"] + [segment(5, tier=3)], [])
    inputs, _ = log.compaction()
    assert len(inputs) == 8
    log.compacted(inputs, None)
    log.restore([segment(1), *[segment(p, writer="a") for p in range(2, 9)], segment(8, writer="b", tier=2)], [])
    assert len(log.compaction()[0]) == 9


def test_a_log_stays_short():
    log, most = SegmentLog(ALL_HASHES), 0
    for _ in range(PRODUCTION.segments_per_tier**TIERS // 4):
        add(log)
        log.completed(log.view())
        while (work := log.compaction()) is not None:
            log.compacted(work[0], segment(work[0][-1].position, tier=work[1]))
        most = max(most, len(log.entries))
    assert most <= PRODUCTION.segments_per_tier * TIERS
