"""The marker's arithmetic, and when its absence says nothing."""

from __future__ import annotations

import pytest

from penstock.core.errors import UndecidedOutputError
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.write.transactions import check_age, checkpoint_of, marker_of

MINUTE_MS = 60_000


def output(age_ms: int, now_ms: int = 10**12) -> Committable:
    return Committable(
        id="out/r/0/3", uid="out", run_id="r", subtask=0, checkpoint_id=3, marker_group="g", rows=7,
        created_ms=now_ms - age_ms,
    )  # fmt: skip


def test_markers_order_by_checkpoint_then_chunk():
    markers = [marker_of(c, n) for c in (1, 2, 3) for n in (0, 1, 65_000)]
    assert markers == sorted(set(markers))
    assert [checkpoint_of(m) for m in markers] == [1] * 3 + [2] * 3 + [3] * 3
    assert checkpoint_of(-1) == checkpoint_of(0) == -1


@pytest.mark.parametrize(("age", "kept"), [(61, 60), (3 * 60, 2 * 60), (8 * 24 * 60, None)])
def test_a_marker_that_may_have_expired_decides_nothing(age, kept):
    """Also on a broker that keeps offsets for an hour only."""
    with pytest.raises(UndecidedOutputError, match="7 records of checkpoint 3"):
        check_age([output(age * MINUTE_MS)], {}, 10**12, lambda: None if kept is None else kept * MINUTE_MS)


def test_a_young_or_marked_output_is_decided_without_asking():
    def asked() -> int:
        pytest.fail("the broker was asked")

    check_age([output(MINUTE_MS - 1)], {}, 10**12, asked)
    check_age([output(10**9)], {"g": marker_of(1, 0)}, 10**12, asked)


def test_within_the_retention_no_marker_means_not_published():
    check_age([output(59 * MINUTE_MS)], {"g": -1}, 10**12, lambda: 60 * MINUTE_MS)
