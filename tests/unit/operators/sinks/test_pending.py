"""Pending output under every order of events."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.snapshot import Committable, FileRef
from penstock.operators.sinks.sink_operator import PendingOutput

Step = st.sampled_from(["stage", "written", "abort", "permit", "published"])


def committable(number):
    return Committable(
        id=f"s/{number}", uid="s", run_id="r", subtask=0, checkpoint_id=number, rows=1, size_bytes=number
    )


@given(st.lists(st.tuples(Step, st.integers(1, 8)), max_size=60))
def test_every_snapshot_names_all_output_not_known_published(steps):
    """Nothing is forgotten before it is published, and nothing leaves out of order."""
    pending, owed, written, published, last = PendingOutput(), set(), set(), [], 0
    for step, number in steps:
        if step == "stage":
            last += 1
            pending.stage(committable(last), (lambda: b"",))
            owed.add(last)
        elif step == "written":
            pending.written(
                Committable(
                    id=f"s/{number}",
                    uid="s",
                    run_id="r",
                    subtask=0,
                    checkpoint_id=number,
                    files=(FileRef(path="f"),),
                    rows=1,
                    size_bytes=number,
                )
            )
            written |= {number} & owed
        elif step in ("permit", "published"):
            ready = [c.checkpoint_id for c in pending.releasable(number)]
            assert ready == sorted(ready)
            assert all(c <= number and c in written for c in ready)
            assert not published or not ready or ready[0] > published[-1]
            if step == "published":
                pending.published(f"s/{c}" for c in ready)
                owed -= set(ready)
                published += ready
        durable, staged = pending.to_snapshot()
        assert {c.checkpoint_id for c in durable} | {s.committable.checkpoint_id for s in staged} == owed
        assert all(c.files for c in durable)
        assert len(pending) == len(owed)
        assert pending.size_bytes == sum(owed)
