"""Alignment against an oracle, over every interleaving of what channels deliver."""

from __future__ import annotations

import itertools

import pytest

from penstock.checkpoint.alignment import Abort, Alignment, Block, Overtake, Snapshot, StopCollecting, Unblock
from penstock.core.elements import Barrier, BarrierKind

END = "end"


def interleavings(sequences):
    """Yield every order in which the heads of the sequences can arrive, as (channel, item)."""
    if not any(sequences):
        yield ()
        return
    for channel, sequence in enumerate(sequences):
        if sequence:
            rest = [s[1:] if i == channel else s for i, s in enumerate(sequences)]
            for tail in interleavings(rest):
                yield ((channel, sequence[0]), *tail)


class Driver:
    """Plays channels into an Alignment as a task does: a blocked channel is not read."""

    def __init__(self, sequences, *, aligned=True):
        self.alignment = Alignment(len(sequences), aligned=aligned)
        self.queues = [list(s) for s in sequences]
        self.blocked: set[int] = set()
        self.log: list = []
        self.before: list[list] = [[] for _ in sequences]

    def step(self, channel) -> bool:
        if channel in self.blocked or not self.queues[channel]:
            return False
        item = self.queues[channel].pop(0)
        if item == END:
            self.apply(self.alignment.on_end_of_input(channel))
        elif isinstance(item, int):
            self.apply(self.alignment.on_barrier(channel, Barrier(item)))
        elif isinstance(item, Barrier):
            self.apply(self.alignment.on_barrier(channel, item))
        else:
            self.before[channel].append(item)
        return True

    def abort(self, number):
        self.apply(self.alignment.on_abort(number))

    def apply(self, commands):
        for command in commands:
            match command:
                case Block(channel):
                    self.blocked.add(channel)
                case Unblock(channels):
                    self.blocked -= set(channels)
                case Snapshot(barrier):
                    self.log.append((barrier.checkpoint_id, tuple(tuple(rows) for rows in self.before)))
                case Abort(number, _):
                    self.log.append(("abort", number))
        assert self.blocked == set(self.alignment.blocked)


def run(sequences, order, *, aligned=True):
    driver = Driver(sequences, aligned=aligned)
    pending = list(order)
    while pending:
        for index, channel in enumerate(pending):
            if driver.step(channel):
                del pending[index]
                break
        else:
            break
    return driver


@pytest.mark.parametrize(
    "sequences",
    [
        [["a", 1, "b", 2], ["x", 1, "y", 2]],
        [["a", 1, END, 2], [1, "y", 2, END]],
        [["a", 1], [1, "y"], ["z", 1]],
        [[END, 1, 2], ["x", 1, 2, END]],
    ],
)
def test_every_cut_is_consistent_in_every_interleaving(sequences):
    numbers = sorted({item for s in sequences for item in s if isinstance(item, int)})
    for order in {tuple(channel for channel, _ in way) for way in interleavings(sequences)}:
        driver = run(sequences, order)
        assert [entry[0] for entry in driver.log] == numbers
        for number, rows in driver.log:
            expected = tuple(
                tuple(i for i in s[: s.index(number)] if isinstance(i, str) and i != END) for s in sequences
            )
            assert rows == expected
        assert driver.blocked == set()
        assert all(not queue for queue in driver.queues)


def test_an_abort_at_any_moment_leaves_nothing_blocked_and_later_cuts_exact():
    sequences = [["a", 1, "b", 2], ["x", 1, "y", 2]]
    events = [0] * 4 + [1] * 4
    for order in set(itertools.permutations(events)):
        for moment in range(len(order) + 1):
            driver = Driver(sequences)
            pending = list(order)
            done = 0
            aborted = False
            while True:
                if done == moment and not aborted:
                    driver.abort(1)
                    aborted = True
                step = next((i for i, c in enumerate(pending) if driver.step(c)), None)
                if step is None:
                    break
                del pending[step]
                done += 1
            cuts = [entry for entry in driver.log if entry[0] != "abort"]
            assert [number for number, _ in cuts] in ([2], [1, 2])
            assert cuts[-1] == (2, (("a", "b"), ("x", "y")))
            assert driver.blocked == set()


def test_a_newer_barrier_supersedes_the_running_one():
    alignment = Alignment(2)
    assert alignment.on_barrier(0, Barrier(1)) == [Block(0)]
    commands = alignment.on_barrier(1, Barrier(2))
    assert isinstance(commands[0], Abort)
    assert commands[0].checkpoint_id == 1
    assert commands[1:] == [Unblock((0,)), Block(1)]
    assert alignment.on_barrier(0, Barrier(2)) == [Snapshot(Barrier(2)), Unblock((0, 1))]


def test_a_late_barrier_of_a_superseded_checkpoint_is_ignored():
    alignment = Alignment(2)
    alignment.on_barrier(0, Barrier(2))
    assert alignment.on_barrier(1, Barrier(1)) == []


def test_an_abort_known_before_the_barrier_comes():
    alignment = Alignment(2)
    assert alignment.on_abort(1) == []
    assert alignment.on_barrier(0, Barrier(1)) == []
    assert alignment.on_barrier(1, Barrier(1)) == []
    assert alignment.waiting == ()


def test_one_channel_never_blocks():
    assert Alignment(1).on_barrier(0, Barrier(1)) == [Snapshot(Barrier(1))]


def test_all_ended():
    alignment = Alignment(2)
    alignment.on_end_of_input(0)
    assert not alignment.all_ended
    alignment.on_end_of_input(1)
    assert alignment.all_ended


def test_the_first_barrier_that_arrives_is_enough_once_it_may_overtake():
    alignment = Alignment(3)
    assert alignment.permit(1) == []
    assert alignment.on_received(Barrier(1)) == [Overtake(Barrier(1), frozenset())]
    assert alignment.on_barrier(2, Barrier(1)) == []


def test_an_alignment_under_way_is_given_up_when_it_may_overtake():
    alignment = Alignment(3)
    assert alignment.on_received(Barrier(1)) == []
    assert alignment.on_barrier(1, Barrier(1)) == [Block(1)]
    assert alignment.permit(1) == [Overtake(Barrier(1), frozenset({1})), Unblock((1,))]
    assert alignment.blocked == frozenset()


def test_a_permit_changes_nothing_for_another_checkpoint():
    alignment = Alignment(2)
    alignment.on_received(Barrier(2))
    assert alignment.permit(1) == []
    assert alignment.on_barrier(0, Barrier(2)) == [Block(0)]
    assert alignment.permit(3) == []


def test_a_newer_checkpoint_or_an_abort_ends_the_collection():
    alignment = Alignment(2)
    alignment.permit(1)
    alignment.on_received(Barrier(1))
    alignment.permit(2)
    stop, abort, overtake = alignment.on_received(Barrier(2))
    assert stop == StopCollecting(1)
    assert (abort.checkpoint_id, overtake) == (1, Overtake(Barrier(2), frozenset()))
    assert alignment.on_abort(2) == [StopCollecting(2)]
    assert alignment.on_abort(2) == []


def test_what_is_collected_is_no_longer_given_up():
    alignment = Alignment(2)
    alignment.permit(1)
    alignment.on_received(Barrier(1))
    alignment.on_collected(1)
    assert alignment.on_barrier(0, Barrier(2)) == [Block(0)]


def test_an_aborted_checkpoint_does_not_overtake():
    alignment = Alignment(2)
    alignment.on_abort(1)
    alignment.permit(1)
    assert alignment.on_received(Barrier(1)) == []


def test_a_late_permit_leaves_a_newer_checkpoint_that_is_being_aligned():
    alignment = Alignment(2)
    alignment.on_received(Barrier(1))
    assert alignment.on_barrier(0, Barrier(2)) == [Block(0)]
    assert alignment.permit(1) == []
    assert alignment.on_barrier(1, Barrier(2)) == [Snapshot(Barrier(2)), Unblock((0, 1))]


def orders(sequences):
    return {tuple(channel for channel, _ in way) for way in interleavings(sequences)}


def before(sequence, number):
    """The rows of a channel before a barrier."""
    place = next(at for at, item in enumerate(sequence) if getattr(item, "checkpoint_id", item) == number)
    return tuple(item for item in sequence[:place] if isinstance(item, str) and item != END)


@pytest.mark.parametrize(
    "sequences",
    [
        [["a", 1, "b", 2], ["x", 1, "y", 2]],
        [["a", 1, 2, "b", 3], [1, "x", 2, 3]],
        [["a", 1, END, 2], [1, "y", 2, END]],
        [["a", 1], [1, "y"], ["z", 1]],
    ],
)
def test_without_alignment_nothing_is_blocked_and_each_cut_has_at_least_the_rows_before_it(sequences):
    numbers = sorted({item for s in sequences for item in s if isinstance(item, int)})
    more = 0
    for order in orders(sequences):
        driver = Driver(sequences, aligned=False)
        assert all(driver.step(channel) for channel in order)
        assert [entry[0] for entry in driver.log] == numbers
        assert driver.alignment.waiting == ()
        for number, rows in driver.log:
            needed = [before(sequence, number) for sequence in sequences]
            assert all(cut[: len(wanted)] == wanted for cut, wanted in zip(rows, needed, strict=True))
            more += sum(map(len, rows)) > sum(map(len, needed))
    assert more


def test_a_savepoint_is_aligned_also_where_checkpoints_are_not():
    savepoint = Barrier(2, BarrierKind.SAVEPOINT)
    sequences = [["a", 1, "b", savepoint, "c"], ["x", 1, "y", savepoint]]
    for order in orders(sequences):
        driver = run(sequences, order, aligned=False)
        assert driver.log[-1] == (2, (("a", "b"), ("x", "y")))
        assert [number for number, _ in driver.log] == [1, 2]
        assert driver.blocked == set()


@pytest.mark.parametrize("aborted", [1, 2])
def test_without_alignment_an_abort_at_any_moment_leaves_the_other_cut(aborted):
    sequences = [["a", 1, "b", 2], ["x", 1, "y", 2]]
    other = 3 - aborted
    for order in orders(sequences):
        for moment in range(len(order) + 1):
            driver = Driver(sequences, aligned=False)
            for at, channel in enumerate(order):
                if at == moment:
                    driver.abort(aborted)
                driver.step(channel)
            assert other in [number for number, _ in driver.log]
            assert driver.alignment.waiting == ()


def test_without_alignment_a_channel_that_skips_a_barrier_gives_its_checkpoint_up():
    alignment = Alignment(3, aligned=False)
    assert alignment.on_barrier(0, Barrier(1)) == []
    assert alignment.on_barrier(0, Barrier(2)) == []
    assert alignment.waiting == (1, 2)
    assert alignment.arrived == {0}
    (abort,) = alignment.on_barrier(1, Barrier(2))
    assert (abort.checkpoint_id, alignment.waiting) == (1, (2,))
    assert alignment.on_barrier(2, Barrier(1)) == []
    assert alignment.on_barrier(2, Barrier(2)) == [Snapshot(Barrier(2))]


def test_aligned_barriers_of_two_checkpoints_are_cut_one_after_the_other():
    sequences = [["a", 1, 2, "b"], [1, "x", 2]]
    for order in orders(sequences):
        driver = run(sequences, order)
        assert driver.log == [(1, (("a",), ())), (2, (("a",), ("x",)))]
