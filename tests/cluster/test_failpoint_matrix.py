"""A selection of the failpoint matrix: every point once, every victim at least three times."""

import pytest
from tests.cluster.matrix import POINTS, Cell, run_cell

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(150)]

SELECTION = (
    Cell("task.before_ack", "worker", 0),
    Cell("task.after_ack", "taskmanager", 1),
    Cell("jobmanager.before_manifest", "jobmanager", 2),
    Cell("jobmanager.after_manifest", "jobmanager", 1),
    Cell("sink.before_publish", "worker", 1),
    Cell("sink.between_chunks", "worker", 0),
    Cell("sink.after_commit", "taskmanager", 0),
    Cell("task.during_restore", "taskmanager", 0),
    Cell("jobmanager.during_rescale", "jobmanager", 0),
    Cell("jobmanager.before_rescale_record", "worker", 0),
    Cell("jobmanager.before_rescale_record", "taskmanager", 1),
    Cell("jobmanager.after_rescale_record", "worker", 1),
    Cell("jobmanager.after_rescale_record", "taskmanager", 0),
    Cell("jobmanager.during_stop", "worker", 0),
    Cell("segment.upload", "worker", 1),
)


def test_the_selection_covers_every_point_and_victim():
    assert {cell.point for cell in SELECTION} == set(POINTS)
    victims = [cell.victim for cell in SELECTION]
    assert min(victims.count(victim) for victim in ("worker", "taskmanager", "jobmanager")) >= 3


@pytest.mark.parametrize("cell", SELECTION, ids=lambda cell: f"{cell.point}-{cell.victim}-{cell.seed}")
def test_killed_at_a_failpoint_the_output_is_exact(stage, cell):
    record = run_cell(stage, cell)
    assert record.exact, record
    assert record.held_pid
    assert record.killed_pid
