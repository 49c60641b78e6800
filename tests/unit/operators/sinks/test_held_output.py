"""Output of a run on trial: held by its sink, over restarts too, within the same limits, and published in order."""

import msgspec
from tests.unit.operators.sinks.test_sink import checkpoint, ids, opened, outside, permit

from penstock.config.settings import JobSettings
from penstock.core.elements import Barrier
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.sinks.sink_operator import SinkOperator

__all__ = ["outside"]


def reopened(bench, operator, held, **settings):
    """The next attempt of the subtask, with what the manifest names."""
    spec = operator._context.spec
    again = SinkOperator()
    changes = {"settings": JobSettings(checkpoint_interval_ms=1000, **settings)}
    again.open(
        bench.context(msgspec.convert(msgspec.to_builtins(spec), OperatorSpec), None, uncommitted=held, **changes)
    )
    return again


def test_what_was_held_is_named_again_and_published_first(bench, outside):
    first = opened(bench)
    checkpoint(bench, first, 1, 10)
    checkpoint(bench, first, 2, 20, 30)
    held = first.snapshot(Barrier(3), None).committables
    second = reopened(bench, first, held)
    assert second.snapshot(Barrier(4), None).committables == held
    checkpoint(bench, second, 5, 40)
    assert bench.jobs == []
    second.notify_complete(permit(5))
    bench.run_jobs()
    assert outside.commits == [(5, ids(1, 2, 5))]
    assert second.snapshot(Barrier(6), None).committables == ()


def test_it_counts_against_the_limits_and_barriers_pass(bench, outside):
    first = opened(bench)
    for number in (1, 2):
        checkpoint(bench, first, number, 10)
    second = reopened(bench, first, first.snapshot(Barrier(3), None).committables, sink_pending_max_epochs=2)
    assert not second.available
    assert len(second.snapshot(Barrier(4), None).committables) == 2
    second.notify_complete(permit(4))
    bench.run_jobs()
    assert second.available
