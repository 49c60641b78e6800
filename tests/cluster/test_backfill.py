"""A topic's history computed beforehand and the live job behind it: in the end every window is in Kafka, once."""

import random

import pytest
from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, Orders, create_topics, read_messages, read_windows, verdict

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

TASKMANAGERS = 2


def job_over(stage, orders, *, bounded):
    """A job whose topic holds all orders."""
    source, sink, name = stage.fresh("orders"), stage.fresh("totals"), stage.fresh("job")
    create_topics(stage.bootstrap, **{source: orders.partitions, sink: 2})
    feed = Feed(stage.bootstrap, source, orders, 100_000)
    feed.start()
    feed.join()
    stops = orders.stops(source) if bounded else None
    job = Job(name, stage.bootstrap, source, sink, stage.root(name), stops=stops)
    return job, job.write(stage.folder)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_history_and_what_came_after_it(stage, shared, here, seed):
    rand = random.Random(seed)
    orders = Orders(seed, 6_000)
    job, path = job_over(stage, orders, bounded=True)
    cuts = {f"{job.source}-{p}": rand.randrange(1_000, 1_500) for p in range(orders.partitions)}
    until = ",".join(f"{split}={cut}" for split, cut in cuts.items())
    uri = f"{job.root}-savepoint"
    told = here("backfill", path, "--to", uri, "--until", until, "--parts", 3, "--json").value
    assert told["rows"] == sum(cuts.values())
    assert {split: state["offset"] for split, state in told["positions"]["orders"].items()} == cuts
    assert told["staged_rows"] > 0
    assert read_messages(stage.bootstrap, job.sink, "read_uncommitted") == [], "a backfill publishes nothing"
    assert here("run", path, "--from", uri, "--cluster", shared.rest_url, "--json").value["state"] == "FINISHED"
    found = verdict(orders, read_windows(stage.bootstrap, job.sink))
    assert found.exact, found


def test_everything_that_is_there_at_a_time_of_writing(stage, here):
    orders = Orders(3, 2_000)
    job, path = job_over(stage, orders, bounded=False)
    for number, (until, rows) in enumerate([("latest", 2_000), ("2100-01-01", 2_000), ("2001-01-01", 0)]):
        uri = f"{job.root}-savepoint-{number}"
        assert here("backfill", path, "--to", uri, "--until", until, "--json").value["rows"] == rows
    here("backfill", path, "--to", f"{job.root}-x", "--until", "orders-77=1", code=2)
    here("backfill", path, "--to", uri, "--until", "latest", code=2)
    assert here("check", path, "--backfill", "--json").value["ok"]
