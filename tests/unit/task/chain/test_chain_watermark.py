"""The watermark of a job that is one chain: no edge sends it, so the last operator's is shown."""

import pytest
from tests.unit.task.chain.test_timers import Plain, chain_of

from penstock.checkpoint.local_copies import LocalCopies, StateFiles
from penstock.checkpoint.memory_store import MemoryStore
from penstock.core.clock import ManualClock
from penstock.core.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus
from penstock.state.memory.budget import MemoryBudget
from penstock.task.drive.subtask_metrics import SubtaskMetrics


class Last(Plain):
    """Passes no watermark on, as a sink."""

    def process_watermark(self, watermark, out):
        """Keep it."""

    def process_status(self, status, out):
        """Keep it."""


class NoRuns:
    completed = failures = 0
    files = StateFiles(MemoryStore(), LocalCopies(None))


def metrics_of(chain):
    return SubtaskMetrics(ManualClock(), None, [], chain, NoRuns(), MemoryBudget(1)).read()


def test_it_is_the_one_that_reached_the_sink():
    chain = chain_of(Plain(), Plain(), Last())
    assert metrics_of(chain)["currentInputWatermark"] == MIN_TIMESTAMP // 1000
    chain.watermark(Watermark(7_000))
    assert metrics_of(chain)["currentInputWatermark"] == 7.0


@pytest.mark.parametrize("operators", [(Plain(),), (Plain(), Last())])
def test_an_idle_one_is_marked(operators):
    chain = chain_of(*operators)
    assert "watermarkIdle" not in metrics_of(chain)
    chain.status(WatermarkStatus(idle=True))
    assert metrics_of(chain)["watermarkIdle"] == 1.0
    chain.status(WatermarkStatus(idle=False))
    assert "watermarkIdle" not in metrics_of(chain)
