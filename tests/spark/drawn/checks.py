"""The comparisons of one drawn job."""

import random
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from tests.spark.drawn.packets import PacketsEngine
from tests.spark.drawn.results import backfilled, lived
from tests.support.memory import folder_in_memory

from penstock.backfill.engine import LocalEngine

#: Columns of state with the numbers of rows, which count per part.
NUMBERED = ("__row", "__entry", "window")
#: State that depends on batches: rows of one session in several entries, timers of sessions that were merged.
SPREAD = dict.fromkeys(("sessions", "union", "stages"), ("sessions",)) | {"window-join": ("__timers_event",)}


def check_here(drawn):
    """Compare backfills in this process, and the live job."""
    with _told(drawn), folder_in_memory() as folder:
        places = Path(folder)
        local = backfilled(drawn, LocalEngine(), places / "local")
        assert drawn.overflow or not local.failed, local.failed
        packets = backfilled(drawn, PacketsEngine(random.Random(drawn.seed)), places / "packets")
        _same(packets, local, "packets in any order")
        if drawn.any_parts:
            others = {"parts": 1, "piece_rows": drawn.other_piece_rows}
            single = backfilled(drawn, LocalEngine(drawn.batch_rows), places / "single", **others)
            _same(single, local, "one part", drawn)
        if drawn.live and not local.failed:
            _check_live(drawn, local)


def _check_live(drawn, local):
    """Compare a backfill with the live job, and what the live job gives after it."""
    rows = _alike(local.rows, drawn.keys)
    live = lived(drawn, drawn.seed, end=False)
    assert_rows(_alike(live, drawn.keys), rows, "live up to the cuts")
    rest = lived(drawn, drawn.seed, end=True, begin=drawn.cuts, savepoint=local.uri)
    whole = lived(drawn, drawn.seed + 1, end=True)
    assert_rows(rows + _alike(rest, drawn.keys), _alike(whole, drawn.keys), "continued live")


def check_there(drawn, engine):
    """Compare a backfill by another engine with one in this process."""
    with _told(drawn), folder_in_memory() as folder:
        local = backfilled(drawn, LocalEngine(), Path(folder, "local"))
        _same(backfilled(drawn, engine(), Path(folder, "there")), local, "another engine")


def _same(found, wanted, what, others=None):
    """Compare results of backfills; with `others`, their job, those of other parts and batches."""
    assert bool(found.failed) == bool(wanted.failed), f"{what}: {found.failed or 'did not fail'}; {wanted.failed}"
    if wanted.failed:
        return
    compared = (lambda rows: rows) if others is None else (lambda rows: _alike(rows, others.keys))
    assert_rows(compared(found.rows), compared(wanted.rows), what)
    assert found.told == wanted.told, what
    assert found.keyed.keys() == wanted.keyed.keys(), what
    for name, rows in wanted.keyed.items():
        if others is None or name[1] not in SPREAD.get(others.family, ()):
            assert_rows(compared(found.keyed[name]), compared(rows), f"{what}, state {name}")


def _alike(rows, keys):
    """Return rows without what may differ between the numbers of parts, and between a batch and a live job.

    Left out are the numbers that a part gives its rows, and the last digits of floats. The key -0.0 is 0.0: they are
    one key, and a join emits that of either side. So it is in aggregates: the minimum of both is the first of them.
    """
    found = Counter()
    for row, count in rows.items():
        pairs = ((name, _rounded(text)) for name, text in row if name not in NUMBERED)
        found[tuple((name, "0" if text == "-0.0" and _has_one_zero(name, keys) else text) for name, text in pairs)] += (
            count
        )
    return found


def _has_one_zero(name, keys):
    return name in keys or name.startswith(("x", "min_", "max_"))


def _rounded(text):
    try:
        return f"{float(text):.9g}" if "." in text and text != "-0.0" else text
    except ValueError:
        return text


def assert_rows(found, wanted, what):
    """Compare rows as multisets; a failure shows some of the difference."""
    if found != wanted:
        more, less = Counter(found), Counter(wanted)
        more.subtract(wanted)
        less.subtract(found)
        lines = [f"+ {n}x {row}" for row, n in sorted(more.items()) if n > 0][:8]
        lines += [f"- {n}x {row}" for row, n in sorted(less.items()) if n > 0][:8]
        raise AssertionError("\n".join([f"{what}: +found, -wanted", *lines]))


@contextmanager
def _told(drawn):
    try:
        yield
    except Exception as error:
        error.add_note(str(drawn))
        raise
