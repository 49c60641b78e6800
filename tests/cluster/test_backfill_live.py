"""The golden jobs started live from a backfill at a random cut: output and final state are the canonical result."""

import random

import pytest
from tests.spark.golden import TWO, Golden

from penstock.backfill.engine import LocalEngine

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: Operators whose backfills `tests/property/test_backfill_model.py` compares in the gate. The live output of `union`
#: and `quiet` depends on the order in which rows of several splits arrive.
NIGHTLY = (
    ("dedup", 6), ("connect", 10), ("connect", 11), ("window-join", 12), ("window-join", 13), ("temporal", 14),
    ("temporal", 15), ("spread", 16),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("windows", 1), ("stages", 2), ("sessions", 3), ("join", 4), ("process", 5),
        *(pytest.param(kind, seed, marks=pytest.mark.nightly) for kind, seed in NIGHTLY),
    ],
)  # fmt: skip
def test_final_output_and_state(kind, seed, tmp_path, monkeypatch):
    rand = random.Random(seed)
    golden = Golden(kind, tmp_path, seed=seed)
    cuts = tuple(rand.randrange(end + 1) for end in golden.ends())
    made = golden.backfill(monkeypatch, LocalEngine(), cuts, parts=rand.choice([1, 3, 7]))
    golden.run_live(made.uri)
    if kind != "dedup":
        assert golden.published() == golden.expected()
    else:  # a row of an earlier time takes the place of one that came before it, live
        assert set(golden.expected()) <= set(golden.published())
        assert {row[0]: row[-2:] for row in golden.state("dedup")}.keys() == {row[0] for row in golden.expected()}
    if kind == "process":
        seen = {user: sum(n for who, _, n in golden.expected() if who == user) for user, *_ in golden.expected()}
        assert {row[0]: row[-1] for row in golden.state("by-second", "seen")} == seen


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param("windows", 7, marks=pytest.mark.nightly),
        ("process", 8),
        pytest.param("join", 9, marks=pytest.mark.nightly),
    ],
)
def test_from_tables_and_the_rest_of_the_source(kind, seed, tmp_path, monkeypatch):
    rand = random.Random(seed)
    golden = Golden(kind, tmp_path, seed=seed)
    cuts = tuple(rand.randrange(100, end + 1) for end in golden.ends())
    uids = ["orders", "others"] if kind in TWO else ["orders"]
    ends = {uid: [rand.randrange(end + 1) for end in golden.ends()] for uid in uids}
    tables = tuple(golden.archive(ends[uid], uid, rand=rand) for uid in uids)
    made = golden.backfill(monkeypatch, LocalEngine(), cuts, parts=3, tables=tables)
    assert made.tables["orders"], "nothing came from the table"
    golden.run_live(made.uri)
    assert golden.published() == golden.expected()
    if kind == "process":
        seen = {user: sum(n for who, _, n in golden.expected() if who == user) for user, *_ in golden.expected()}
        assert {row[0]: row[-1] for row in golden.state("by-second", "seen")} == seen
