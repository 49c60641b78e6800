"""The functions of drawn jobs; executors import them."""

from collections.abc import Iterator

import penstock as ps


class Slot(ps.Schema):
    slot: int
    rows: int
    others: int
    #: Sum of the rows' numbers.
    total: int


class BySlot(ps.KeyedProcessFunction):
    """Counts the rows of each key by slot of time, and emits the count when the slot is over."""

    rows: ps.MapState[int, tuple[int, int]] = ps.map_state()

    def __init__(self, slot_us):
        self.slot_us = slot_us

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Slot]:
        slot = ctx.timestamp // self.slot_us
        count, total = self.rows.get(slot) or (0, 0)
        if not count:
            ctx.timers.event((slot + 1) * self.slot_us - 1)
        self.rows.put(slot, (count + 1, total + row.row))
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Slot]:
        slot = timestamp // self.slot_us
        count, total = self.rows.get(slot) or (0, 0)
        self.rows.remove(slot)
        yield Slot(slot=slot, rows=count, others=0, total=total)


class BySlotOfBoth(ps.KeyedCoProcessFunction):
    """Does the same with two streams."""

    ours: ps.MapState[int, tuple[int, int]] = ps.map_state()
    theirs: ps.MapState[int, int] = ps.map_state()

    def __init__(self, slot_us):
        self.slot_us = slot_us

    def process1(self, row, ctx: ps.ProcessContext) -> Iterator[Slot]:
        slot = self._slot(ctx)
        count, total = self.ours.get(slot) or (0, 0)
        self.ours.put(slot, (count + 1, total + row.row))
        yield from ()

    def process2(self, row, ctx: ps.ProcessContext) -> Iterator[Slot]:
        slot = self._slot(ctx)
        self.theirs.put(slot, (self.theirs.get(slot) or 0) + 1)
        yield from ()

    def _slot(self, ctx):
        slot = ctx.timestamp // self.slot_us
        ctx.timers.event((slot + 1) * self.slot_us - 1)
        return slot

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Slot]:
        slot = timestamp // self.slot_us
        count, total = self.ours.get(slot) or (0, 0)
        others = self.theirs.get(slot) or 0
        self.ours.pop(slot, None)
        self.theirs.pop(slot, None)
        yield Slot(slot=slot, rows=count, others=others, total=total)


class Step(ps.Schema):
    row: int
    at: int
    before: int | None
    #: Rows of the key without a pause between them.
    rows: int


class Steps(ps.KeyedProcessFunction):
    """Emits for each row the one before it, and the end of a run of rows once its key pauses."""

    last: ps.ValueState[int] = ps.value_state()
    timer: ps.ValueState[int] = ps.value_state()
    seen: ps.ListState[int] = ps.list_state()

    def __init__(self, pause_us):
        self.pause_us = pause_us

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Step]:
        due = self.timer.value()
        if due is not None:
            ctx.timers.delete(due)
        self.timer.update(ctx.timestamp + self.pause_us)
        ctx.timers.event(ctx.timestamp + self.pause_us)
        self.seen.append(row.row)
        yield Step(row=row.row, at=ctx.timestamp, before=self.last.value(), rows=len(self.seen))
        self.last.update(row.row)

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Step]:
        yield Step(row=-1, at=timestamp, before=self.last.value(), rows=len(self.seen))
        self.timer.clear()
        self.seen.clear()


def quieter(row) -> bool:
    """Whether a row is kept."""
    return row.row % 4 != 1
