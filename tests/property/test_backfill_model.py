"""What a backfill stages is what the rows before the cut give, plainly computed, as far as event time has come."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.golden import AT_ONCE, KINDS, TWO, Golden
from tests.support.depth import examples

from penstock.backfill.engine import LocalEngine


@pytest.mark.parametrize("kind", KINDS)
def test_output_up_to_a_random_cut(kind):
    @examples(6)
    @given(
        cuts=st.tuples(*[st.integers(0, 420)] * 3),
        parts=st.sampled_from([1, 3, 8]),
        piece_rows=st.sampled_from([37, 1000]),
        disorder_ms=st.sampled_from([0, 400, 2_000]),
        seed=st.integers(1, 9),
        batch_rows=st.sampled_from([7, 100, 32_768]),
    )
    def holds(cuts, parts, piece_rows, disorder_ms, seed, batch_rows):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            golden = Golden(kind, Path(folder), rows=1_200, seed=seed, disorder_ms=disorder_ms)
            made = golden.backfill(patch, LocalEngine(batch_rows), cuts, parts=parts, piece_rows=piece_rows)
            reached = golden.watermark(cuts)
            assert made.watermark == reached
            assert made.rows_read == sum(min(cut, 400) for cut in cuts) * (2 if kind in TWO else 1)
            wanted = golden.expected(cuts, reached if reached is not None else -(1 << 62))
            assert golden.staged(made.uri) == (golden.expected(cuts) if kind in AT_ONCE else wanted)
            assert {name.name for name in Path(folder, "savepoint").iterdir()} >= {"manifest.json"}
            assert not Path(folder, "out").exists()

    holds()
