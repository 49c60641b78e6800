"""Cuts of a topic's history that a user gives as positions: what is not there to be read is refused."""

import pytest

from penstock.connector.source import SourceSplit
from penstock.core.errors import UsageError
from penstock_connectors.kafka import history as module

ENDS = {"orders-0": 120, "orders-1": 90}


class Cluster:
    """Stands for `KafkaEnumerator`: two partitions from offset 10 on."""

    def __init__(self, config, *, first_run):
        assert first_run
        self.bounded = config["bounded"]

    def discover(self, known):
        assert not known
        ends = ENDS if self.bounded == "latest" else dict.fromkeys(ENDS, self.bounded)
        return tuple(
            SourceSplit(id=name, state={"topic": "orders", "partition": number, "offset": 10, "stop": ends[name]})
            for number, name in enumerate(ENDS)
        )


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    monkeypatch.setattr(module, "KafkaEnumerator", Cluster)


def history(positions, bounded=None):
    found = module.history({"bounded": bounded}, {"positions": positions}, None)
    return [split.rest.state["offset"] for split in found]


def test_positions_up_to_the_end_are_taken():
    assert history({"orders-0": 120, "orders-1": 10}) == [120, 10]
    assert history({"orders-0": 5, "orders-1": 90}) == [10, 90], "it starts at 10 and reads nothing"
    assert history({"orders-0": 500, "orders-1": 500}, bounded=60) == [60, 60], "the source ends before"


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        (
            {"orders-0": 121, "orders-1": 10},
            "position 121 of 'orders-0' is beyond its end: .* at 120",
        ),
        ({"orders-0": 120}, "no position is given for orders-1"),
        ({"orders-0": 120, "orders-1": 10, "orders-7": 1}, "there is no partition 'orders-7'"),
    ],
)
def test_what_cannot_be_read_is_refused(positions, says):
    with pytest.raises(UsageError, match=says):
        history(positions)


def test_an_end_of_the_source_that_is_not_there_yet_is_refused_too():
    with pytest.raises(UsageError, match="position 100 of 'orders-1'"):
        history({"orders-0": 100, "orders-1": 500}, bounded=100)
