"""A submit that finds a job of its name running: it says that its file does not run, or that the name runs twice."""

import logging
from types import SimpleNamespace

import pytest
from msgspec import structs

from penstock.client.executors import SubmitOptions, submit_graph
from penstock.config.settings import JobSettings
from penstock.core.errors import JobIdentityError, PenstockError
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


@pytest.mark.parametrize("answers", [True, False])
def test_it_warns_that_the_name_runs_twice_from_two_folders(caplog, answers):
    def root_of(job_id):
        if not answers:
            raise PenstockError("no JobManager")
        return f"/first/{job_id[0]}"

    names = {"a": ("orders", "RUNNING"), "b": ("orders", "FAILED"), "c": ("o", "RUNNING"), "d": ("orders", "CREATED")}
    jobs = [{"jid": letter * 32, "name": name, "state": state} for letter, (name, state) in names.items()]
    client = SimpleNamespace(submit=lambda *_, **__: "d" * 32, jobs=lambda: jobs, checkpoint_root=root_of)
    settings = JobSettings(checkpoint_root="/second")
    with caplog.at_level(logging.WARNING, logger="penstock"):
        handle = submit_graph(client, structs.replace(GRAPH, settings=settings), SubmitOptions(fresh=True))
    assert handle.job_id == "d" * 32
    warning = (
        f"job 'orders' runs twice: as {'a' * 32} with checkpoints in /first/a, and now as {'d' * 32} with"
        " checkpoints in /second; commands by name act on the newest: cancel one by its id, or give it another --name"
    )
    assert caplog.messages == [warning][:answers]
