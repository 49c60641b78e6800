"""The best rows of each window: both phases against a naive model, ties, lateness, what is saved."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.errors import GraphError
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.eventtime.windows import sliding_windows
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.registry import create_operator

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("x", pa.float64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)


@pytest.fixture
def make(bench):
    def made(*, local=False, size=10, slide=None, restored=(), **changes):
        window = {"kind": "sliding", "size_us": size, "slide_us": slide or size, "offset_us": 0}
        config = {"window": window, "by": "v", "count": 1, "descending": True, "ties": True, "local": local}
        spec = OperatorSpec(uid="top", name="Top", kind="window_top", config=config | changes)
        operator = create_operator("window_top")
        operator.open(bench.context(spec, SCHEMA, restored=restored))
        return operator

    return made


def batch(rows):
    """Rows of (id, value, time)."""
    return Batch(
        pa.RecordBatch.from_pylist(
            [
                {"id": i, "v": v, "x": float("nan") if v is None else v / 2, "s": f"s{i}", TS_COLUMN: t}
                for i, v, t in rows
            ],
            schema=SCHEMA,
        )
    )


def ids(out):
    return [row["id"] for row in out.rows]


def test_every_row_that_reaches_the_maximum_comes_whole_when_the_window_closes(make, out):
    operator = make()
    operator.process_batch(batch([(1, 5, 0), (2, 7, 3), (3, 7, 9), (4, 9, 10), (5, None, 4)]), 0, out)
    operator.process_watermark(Watermark(8), out)
    assert out.rows == []
    operator.process_watermark(Watermark(9), out)
    assert [(r["id"], r["v"], r["s"], r[TS_COLUMN]) for r in out.rows] == [(2, 7, "s2", 9), (3, 7, "s3", 9)]
    assert out.elements[-1] == Watermark(9), "the rows come before the watermark"
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    assert ids(out) == [2, 3, 4]


def test_without_ties_the_first_that_came_wins(make, out):
    operator = make(ties=False, count=2)
    operator.process_batch(batch([(1, 7, 0), (2, 7, 3), (3, 7, 9), (4, 1, 9)]), 0, out)
    operator.process_watermark(Watermark(9), out)
    assert ids(out) == [1, 2]


def test_late_rows_are_counted_and_left_out(make, out):
    operator = make()
    operator.process_watermark(Watermark(9), out)
    operator.process_batch(batch([(1, 5, 9), (2, 3, 10)]), 0, out)
    assert operator._context.metrics.late_records_dropped == 1
    operator.process_watermark(Watermark(19), out)
    assert ids(out) == [2]


def test_the_first_phase_lets_through_only_what_may_win_and_late_rows(make, out):
    operator = make(local=True)
    operator.process_batch(batch([(1, 5, 0), (2, 7, 3), (3, 2, 12)]), 0, out)
    operator.process_batch(batch([(4, 6, 5), (5, 7, 5), (6, 1, 13), (7, 8, 4)]), 0, out)
    assert ids(out) == [2, 3, 5, 7] or ids(out) == [2, 3, 7]
    operator.process_watermark(Watermark(9), out)
    out.elements.clear()
    operator.process_batch(batch([(8, 1, 2), (9, 2, 14)]), 0, out)
    assert ids(out) == [8, 9]
    assert operator.snapshot(Barrier(1), out).operator == ()


@pytest.mark.parametrize("by", ["v", "x"])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(("size", "slide"), [(10, 10), (10, 5), (10, 3), (3, 7)])
@pytest.mark.parametrize(("count", "ties"), [(1, True), (1, False), (3, True), (3, False)])
def test_two_phases_give_what_a_model_gives(make, bench, out, by, descending, size, slide, count, ties):
    random = np.random.default_rng(size * slide + count)
    shape = {"by": by, "descending": descending, "count": count, "ties": ties, "size": size, "slide": slide}
    locals_, top = [make(local=True, **shape) for _ in range(2)], make(**shape)
    rows, windows = [], {}
    for number in range(60):
        pieces = [[], []]
        for _ in range(int(random.integers(1, 20))):
            row = (len(rows), int(random.integers(-9, 10)), int(number * 3 + random.integers(0, 12)))
            rows.append(row)
            pieces[row[0] % 2].append(row)
        for operator, piece in zip(locals_, pieces, strict=True):
            if piece:
                operator.process_batch(batch(piece), 0, Forward(top, out))
        if number % 4 == 3:
            for operator in locals_:
                operator.process_watermark(Watermark(number * 3), Forward(top, out, last=operator is locals_[1]))
        if number == 30:
            saved = msgspec.json.decode(
                msgspec.json.encode(top.snapshot(Barrier(1), out).operator), type=tuple[OperatorStateSnapshot, ...]
            )
            locals_, top = [make(local=True, **shape) for _ in range(2)], make(**shape, restored=saved)
    top.process_watermark(Watermark(MAX_TIMESTAMP), out)
    for number, value, time in rows:
        for window in sliding_windows(time, size, slide):
            windows.setdefault(window, []).append((value if descending else -value, -number))
    expected = []
    for window in sorted(windows):
        best = sorted(windows[window], reverse=True)
        least = best[:count][-1][0]
        kept = [b for b in best if b[0] >= least] if ties else best[:count]
        expected.append((window.max_timestamp, sorted(v for v, _ in kept), sorted(-n for _, n in kept)))
    found = {}
    for row in out.rows:
        found.setdefault(row[TS_COLUMN], []).append(row)
    got = []
    for time, chosen in sorted(found.items()):
        values = [r["v"] if descending else -r["v"] for r in chosen]
        assert values == sorted(values, reverse=True), "the best come first"
        got.append((time, sorted(values), sorted(r["id"] for r in chosen)))
    if not ties:  # which of equal rows is the first depends on how the two halves arrive
        expected, got = [e[:2] for e in expected], [g[:2] for g in got]
    assert got == expected


class Forward:
    """The edge between the phases."""

    def __init__(self, top, out, *, last=False):
        self.top, self.out, self.last = top, out, last

    def batch(self, rows):
        self.top.process_batch(rows, 0, self.out)

    def watermark(self, watermark):
        if self.last:  # the minimum of both halves
            self.top.process_watermark(watermark, self.out)


def test_candidates_do_not_pile_up(make, out):
    operator = make(size=1_000_000)
    for start in range(0, 100_000, 1000):
        operator.process_batch(batch([(i, i, 5) for i in range(start, start + 1000)]), 0, out)
    assert operator._windows[0].rows < 10_000
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    assert ids(out) == [99_999]


def test_the_choice_is_made_in_one_subtask(bench):
    window = {"kind": "tumbling", "size_us": 10, "slide_us": 10}
    config = {"window": window, "by": "v", "count": 1, "descending": True, "ties": True, "local": False}
    spec = OperatorSpec(uid="top", name="Top", kind="window_top", config=config)
    with pytest.raises(GraphError, match="one subtask, not 2"):
        create_operator("window_top").open(bench.context(spec, SCHEMA, parallelism=2))


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"by": "s"}, "type string"), ({"by": "w"}, "no column 'w'"), ({"count": 0}, "keeps no row")],
)
def test_what_cannot_be_ordered_is_refused(make, changes, match):
    with pytest.raises(GraphError, match=match):
        make(**changes)


def test_behind_a_drain_its_rows_are_not_late(make, out):
    operator = make()
    operator.process_batch(batch([(1, 5, 0)]), 0, out)
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    again = make(restored=operator.snapshot(Barrier(1), out).operator)
    again.process_batch(batch([(2, 3, 4)]), 0, out)
    again.process_watermark(Watermark(9), out)
    assert ids(out) == [1, 2]
