"""Cuts of a topic's history that a user gives as positions: what is not there to be read is refused."""

import pytest

from penstock.connector.source import SourceSplit
from penstock.core.errors import UsageError
from penstock_connectors.kafka.read import history as module

ENDS = {"orders-0": 120, "orders-1": 90}


class Cluster:
    """Stands for `KafkaEnumerator`: two partitions from offset 10 on."""

    def __init__(self, config, *, first_run):
        assert first_run
        self.bounded = config["bounded"]

    def stop(self, bounded):
        return bounded["timestamp"] * 10 if isinstance(bounded, dict) else bounded

    def discover(self, known):
        assert not known
        ends = ENDS if self.bounded == "latest" else dict.fromkeys(ENDS, self.stop(self.bounded))
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
            "position 121 of 'orders-0' is after its end: .* at 120",
        ),
        ({"orders-0": 120}, "orders-1 has no position"),
        ({"orders-0": 120, "orders-1": 10, "orders-7": 1}, "there is no partition 'orders-7'"),
    ],
)
def test_what_cannot_be_read_is_refused(positions, says):
    with pytest.raises(UsageError, match=says):
        history(positions)


def test_an_end_of_the_source_that_is_not_there_yet_is_refused_too():
    with pytest.raises(UsageError, match="position 100 of 'orders-1'"):
        history({"orders-0": 100, "orders-1": 500}, bounded=100)


def begun(positions, until=None, **also):
    begin = also.get("begin", {"positions": positions})
    found = module.history({"bounded": also.get("bounded")}, until or {}, None, begin)
    pieces = [(piece.state["offset"], piece.state["stop"]) for split in found for piece in split.pieces]
    return pieces, [(split.begin, split.rest.state["offset"]) for split in found]


def test_behind_a_table_partitions_begin_where_it_ends():
    assert begun({"orders-0": 30, "orders-1": 90}) == ([(30, 120), (90, 90)], [(30, 120), (90, 90)])
    pieces, ends = begun({"orders-0": 30, "orders-1": 40}, {"positions": {"orders-0": 20, "orders-1": 50}})
    assert (pieces, ends) == ([(20, 20), (40, 50)], [(20, 20), (40, 50)]), "a cut before the table's end stands"
    assert begun({"orders-0": 30, "orders-1": 40}, {"begin": True})[1] == [(30, 30), (40, 40)]
    assert begun({"orders-0": 30, "orders-1": 80}, {"begin": True}, bounded=60)[1] == [(30, 30), (60, 60)]


def test_where_partitions_were_to_begin_is_told_also_behind_the_cut():
    begin = {"positions": {"orders-0": 30, "orders-1": 80}}
    for until, bounded in (({"positions": {"orders-0": 50, "orders-1": 60}}, None), ({"begin": True}, 60)):
        found = module.history({"bounded": bounded}, until, None, begin)
        assert [(split.begin, split.start) for split in found] == [(30, 30), (60, 80)]


def test_where_the_job_would_start_is_told_without_a_table():
    found = module.history({"bounded": None}, {"begin": True}, None)
    assert [(split.begin, split.start, split.rest.state["offset"]) for split in found] == [(10, 10, 10)] * 2


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        ({"orders-0": 7, "orders-1": 40}, "gap: offsets 7 to 9 of 'orders-0' are neither in the table nor"),
        ({"orders-0": 30, "orders-1": 91}, "the table reaches offset 91 of 'orders-1', but the topic ends at 90"),
        ({"orders-0": 30}, "orders-1 has no position"),
        ({"orders-0": 30, "orders-1": 30, "orders-2": 30}, "there is no partition 'orders-2'"),
    ],
)
def test_a_topic_that_does_not_go_with_the_table_is_refused(positions, says):
    with pytest.raises(UsageError, match=says):
        begun(positions)


def test_a_cut_in_what_only_the_table_has_is_refused():
    positions = {"orders-0": 30, "orders-1": 40}
    assert begun(positions, {"positions": {"orders-0": 50, "orders-1": 10}})[1] == [(30, 50), (10, 10)]
    with pytest.raises(
        UsageError, match=r"the end position is before the first record of 'orders-1': offsets below 10 are"
    ):
        begun(positions, {"positions": {"orders-0": 50, "orders-1": 9}})


def test_an_end_of_the_source_in_what_only_the_table_has_stands():
    pieces, ends = begun({"orders-0": 30, "orders-1": 40}, bounded=9)
    assert (pieces, ends) == ([(9, 9), (9, 9)], [(9, 9), (9, 9)]), "the live job does not go on"


def test_times_must_lie_in_what_the_topic_still_has():
    assert begun(None, begin={"timestamp": 5})[1] == [(50, 120), (50, 90)]
    with pytest.raises(UsageError, match=r"'orders-0' no longer has records from before the cut-over: .* below 10"):
        begun(None, begin={"timestamp": 1})
    positions = {"orders-0": 30, "orders-1": 40}
    assert begun(positions, {"timestamp": 2})[1] == [(20, 20), (20, 20)]
    with pytest.raises(UsageError, match="the end position is \\(possibly\\) before the first record of 'orders-0'"):
        begun(positions, {"timestamp": 1})
    with pytest.raises(UsageError, match="the source ends \\(possibly\\) before"):
        begun(positions, {"begin": True}, bounded={"timestamp": 1})
    assert module.history({"bounded": None}, {"timestamp": 1}, None)[0].rest.state["offset"] == 10, "without a table"
