"""A submit that finds its job running: it says that the file of this submit does not run."""

import logging
from types import SimpleNamespace

from penstock.client.executors import SubmitOptions, submit_graph
from penstock.config.settings import JobSettings
from penstock.core.errors import JobIdentityError
from penstock.graph.job_graph import JobGraph

GRAPH = JobGraph(name="orders", vertices=(), edges=(), settings=JobSettings())


def refuse(*_args, **_options):
    """Refuse as a JobManager where the job runs."""
    raise JobIdentityError("job 'orders' runs already")


def test_it_warns_that_the_file_was_not_submitted(caplog):
    running = [{"jid": "a" * 32, "name": "orders", "state": "RUNNING"}]
    client = SimpleNamespace(submit=refuse, jobs=lambda: running)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        handle = submit_graph(client, GRAPH, SubmitOptions(attach=True, fresh=True))
    assert handle.job_id == "a" * 32
    assert "job 'orders' runs already" in caplog.text
    assert "upgrade" in caplog.text
