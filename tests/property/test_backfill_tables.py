"""A table holds the first part of each split: the backfill is the one that reads all of it from the source."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.golden import TWO, Golden
from tests.support.depth import examples

from penstock.backfill.engine import LocalEngine
from penstock.snapshots.access.opening import open_snapshot


def positions(uri):
    states = [state for part in open_snapshot(uri).manifest.subtasks for state in part.operator]
    return sorted((state.uid, state.name, repr(state.items)) for state in states)


@pytest.mark.parametrize("kind", ["windows", "join", "process", "union", "quiet"])
def test_the_same_as_from_the_source_alone(kind):
    @examples(5)
    @given(
        cuts=st.tuples(*[st.integers(0, 400)] * 3),
        ends=st.tuples(*[st.integers(0, 400)] * 3),
        piece_rows=st.sampled_from([37, 1000]),
        seed=st.integers(1, 9),
        shuffled=st.booleans(),
    )
    def holds(cuts, ends, piece_rows, seed, shuffled):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            golden = Golden(kind, Path(folder), rows=1_200, seed=seed)
            rand = random.Random(seed) if shuffled else None
            uids = ["orders", "others"] if kind in TWO else ["orders"]
            tables = tuple(golden.archive(ends, uid, rand=rand) for uid in uids)
            plain = golden.backfill(patch, LocalEngine(), cuts, "plain", piece_rows=piece_rows)
            made = golden.backfill(patch, LocalEngine(), cuts, "stitched", piece_rows=piece_rows, tables=tables)
            assert made.watermark == plain.watermark == golden.watermark(cuts)
            assert made.rows_read == plain.rows_read
            assert golden.staged(made.uri) == golden.staged(plain.uri)
            assert positions(made.uri) == positions(plain.uri)
            for split, (low, high) in made.tables.get("orders", {}).items():
                number = int(split[-1])
                assert (low, high) == (0, min(cuts[number], ends[number]))

    holds()
