"""How far event time was at a snapshot, as its operators' states say."""

import pytest

from penstock.checkpoint.manifest_log import FORMAT_VERSION, Manifest
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.snapshot import OperatorStateSnapshot, SubtaskSnapshot
from penstock.snapshots.access.content import watermark_of


def of(mark):
    return {"hash_low": 0, "hash_high": 9, "watermark": mark}


@pytest.mark.parametrize(
    ("items", "reached"),
    [
        ([], None),
        ([[MIN_TIMESTAMP]], None),
        ([[7], [5]], 5),
        ([[5], [of(7)], [of(8), of(6)]], 8),
        ([[7], [of(MAX_TIMESTAMP)], [of(6)]], 6),
        ([[7], [of(MIN_TIMESTAMP)]], None),
        ([[{"partition": 3}]], None),
    ],
)
def test_windows_say_it_and_sources_where_there_are_none(items, reached):
    parts = tuple(
        SubtaskSnapshot(
            vertex_id="v",
            subtask=number,
            operator=(OperatorStateSnapshot(uid="u", name="watermark", mode="union", items=tuple(own)),),
        )
        for number, own in enumerate(items)
    )
    manifest = Manifest(
        version=FORMAT_VERSION, kind="savepoint", sequence=1, job_id="j", job_name="a", run_id="r", generation=1,
        nonce="n", created_ms=1, subtasks=parts,
    )  # fmt: skip
    assert watermark_of(manifest) == reached


def test_what_a_user_keeps_under_that_name_says_nothing():
    state = OperatorStateSnapshot(uid="u", name="watermark", mode="union", items=(of(9), 9), schema="columns")
    part = SubtaskSnapshot(vertex_id="v", subtask=0, operator=(state,))
    manifest = Manifest(
        version=FORMAT_VERSION, kind="savepoint", sequence=1, job_id="j", job_name="a", run_id="r", generation=1,
        nonce="n", created_ms=1, subtasks=(part,),
    )  # fmt: skip
    assert watermark_of(manifest) is None
