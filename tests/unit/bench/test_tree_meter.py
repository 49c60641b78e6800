"""What the meter says of slot workers, of samples made up here."""

import os

import pytest

from penstock_lab.bench.measuring.tree_meter import TreeMeter

MB = 1_000_000


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ({7: [(1.0, 50 * MB), (3.0, 60 * MB), (4.0, 58 * MB)], 8: [(1.0, 70 * MB), (3.0, 71 * MB)]}, (71, 10)),
        ({7: [(3.0, 60 * MB), (4.0, 65 * MB)]}, (65, 5)),
        ({7: [(1.0, 50 * MB)]}, None),
        ({}, None),
    ],
    ids=["the most of each", "began after the moment", "ended before anybody looked", "never seen"],
)
def test_private_memory_since_a_moment(samples, expected):
    meter = TreeMeter(os.getpid())
    meter._private = samples
    assert meter.workers_private_mb(2.0) == expected
