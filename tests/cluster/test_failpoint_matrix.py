"""The failpoint matrix: every point with one victim in the gate, all of its cells in a nightly run."""

import pytest
from tests.cluster.matrix import POINTS, VICTIMS, Cell, run_cell

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: Every point once.
GATE = (
    Cell("task.before_ack", "worker", 0),
    Cell("task.after_ack", "taskmanager", 1),
    Cell("jobmanager.before_manifest", "jobmanager", 2),
    Cell("jobmanager.after_manifest", "jobmanager", 1),
    Cell("sink.before_publish", "worker", 1),
    Cell("sink.between_chunks", "worker", 0),
    Cell("sink.after_commit", "taskmanager", 0),
    Cell("task.during_restore", "taskmanager", 0),
    Cell("jobmanager.during_rescale", "jobmanager", 0),
    Cell("jobmanager.before_rescale_record", "taskmanager", 1),
    Cell("jobmanager.after_rescale_record", "worker", 1),
    Cell("jobmanager.during_stop", "worker", 0),
    Cell("segment.upload", "worker", 1),
)
SEEDS = 3
NIGHTLY = tuple(
    cell
    for point in POINTS
    for victim in VICTIMS
    for seed in range(SEEDS)
    if (cell := Cell(point, victim, seed)) not in GATE
)


def test_the_gate_covers_every_point_and_victim():
    assert sorted(cell.point for cell in GATE) == sorted(POINTS)
    victims = [cell.victim for cell in GATE]
    assert min(victims.count(victim) for victim in VICTIMS) >= 3
    assert len(GATE + NIGHTLY) == len(POINTS) * len(VICTIMS) * SEEDS


@pytest.mark.parametrize(
    "cell",
    [*GATE, *(pytest.param(cell, marks=pytest.mark.nightly) for cell in NIGHTLY)],
    ids=lambda cell: f"{cell.point}-{cell.victim}-{cell.seed}",
)
def test_killed_at_a_failpoint_the_output_is_exact(stage, cell):
    record = run_cell(stage, cell)
    assert record.exact, record
    assert record.held_pid
    assert record.killed_pid
