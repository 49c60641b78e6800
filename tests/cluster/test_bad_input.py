"""Bad input gives one line with place and remedy, and an exit code; nothing hangs or is lost.

The next line has the bad record.
"""

import re

import pytest
from tests.cluster.harness import Scene
from tests.cluster.job_file import Job
from tests.cluster.orders import Orders, create_topics, limit_messages, produce_values, read_messages
from tests.cluster.stage import cli

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

TASKMANAGERS = 2
ONE_WINDOW = [b'{"user_id":%d,"amount":%d,"ts":%d}' % (1, n, 1_700_000_000_000 + n) for n in range(1, 11)]


def job_of(stage, values=(), **changes):
    """A bounded job over one partition that holds `values`."""
    name = stage.fresh("job")
    source, sink = stage.fresh("orders"), stage.fresh("totals")
    create_topics(stage.bootstrap, **{source: 1, sink: 2})
    produce_values(stage.bootstrap, source, values)
    options = {
        "name": name, "bootstrap": stage.bootstrap, "source": source, "sink": sink, "root": stage.root(name),
        "stops": {(source, 0): len(values)}, "environment": "restart='none'", **changes,
    }  # fmt: skip
    return Job(**options)


def shown(said, words, codes, record=""):
    """It must have ended with one line on stderr that holds `words`, and the bad record; return the line."""
    lines = said.err.strip().splitlines()
    assert said.code in codes, said
    assert lines[1:] == ([f"value: {record!r}"] if record else []), said.err
    assert lines[0].startswith("penstock: ")
    for word in words:
        assert re.search(word, lines[0], re.IGNORECASE), f"{word!r} is not in: {lines[0]}"
    assert re.search(r"\(.+\)$", lines[0]), f"no way out in: {lines[0]}"
    return lines[0]


@pytest.fixture
def refused(stage, shared, here):
    """Run a job or a text; it must end with one line on stderr that holds `words`."""

    def run(job_or_text, *words, code=None, record=""):
        path = stage.folder / "job.py"
        path.write_text(job_or_text if isinstance(job_or_text, str) else job_or_text.text(), encoding="utf-8")
        said = here("run", path, "--cluster", shared.rest_url, "--json", code=None)
        return shown(said, words, (1, 2, 3) if code is None else (code,), record)

    return run


def test_an_unreachable_broker(stage, refused, unused_port):
    refused(job_of(stage, bootstrap=f"127.0.0.1:{unused_port}"), f"127.0.0.1:{unused_port}", code=1)


def test_an_unreachable_broker_of_the_sink(stage, refused, unused_port):
    refused(job_of(stage, ONE_WINDOW, sink_bootstrap=f"127.0.0.1:{unused_port}"), f"127.0.0.1:{unused_port}", code=1)


def test_a_missing_topic(stage, refused):
    missing = stage.fresh("missing")
    refused(job_of(stage, source=missing, stops=None), missing, code=2)
    refused(job_of(stage, ONE_WINDOW, sink=missing), missing, code=2)


def test_an_unwritable_checkpoint_store(stage, refused):
    refused(job_of(stage, ONE_WINDOW, root="s3://no-such-bucket-at-all/x"), "no-such-bucket-at-all", code=1)
    file = stage.folder / "a-file"
    file.write_text("")
    refused(job_of(stage, ONE_WINDOW, root=f"{file}/checkpoints"), "a-file", code=1)


def test_a_malformed_record_fails_the_job_with_its_place(stage, refused):
    job = job_of(stage, [*ONE_WINDOW, b"{broken", *ONE_WINDOW])
    line = refused(job, job.source, "10", code=3, record=b"{broken")
    assert "partition" in line.lower()
    assert read_messages(stage.bootstrap, job.sink) == []


def test_a_record_of_another_schema_fails_the_job_with_its_place(stage, refused):
    record = b'{"user_id":1,"amount":"many","ts":1700000000000}'
    job = job_of(stage, [*ONE_WINDOW, record])
    refused(job, job.source, "10", "amount", code=3, record=record)


def test_a_result_larger_than_its_topic_takes_ends_the_job_and_comes_once_it_is_taken(stage, refused, shared, here):
    job = job_of(stage, ONE_WINDOW, environment="")  # the default restarts the job after a failure, but not after this
    limit_messages(stage.bootstrap, job.sink, 40)
    refused(job, job.sink, "too large", r"raise the topic's max\.message\.bytes", code=3)
    assert read_messages(stage.bootstrap, job.sink) == []
    limit_messages(stage.bootstrap, job.sink, 4_000)
    here("run", job.write(stage.folder), "--cluster", shared.rest_url, "--json")
    (row,) = read_messages(stage.bootstrap, job.sink)
    assert b'"n":10' in row.value().replace(b" ", b"")


def test_malformed_records_can_be_skipped(stage, shared, here):
    job = job_of(stage, [*ONE_WINDOW, b"{broken", b"null", *ONE_WINDOW], source_options="on_bad_record='skip'")
    path = job.write(stage.folder)
    said = here("run", path, "--cluster", shared.rest_url, "--json")
    assert said.value["state"] == "FINISHED"
    (row,) = read_messages(stage.bootstrap, job.sink)
    assert b'"n":20' in row.value().replace(b" ", b"")


def test_malformed_records_can_be_put_aside(stage, shared, here):
    aside = stage.fresh("aside")
    create_topics(stage.bootstrap, **{aside: 1})
    options = f"on_bad_record='dead-letter', dead_letter_topic={aside!r}"
    job = job_of(stage, [*ONE_WINDOW, b"{broken", *ONE_WINDOW], source_options=options)
    path = job.write(stage.folder)
    here("run", path, "--cluster", shared.rest_url, "--json")
    (row,) = read_messages(stage.bootstrap, job.sink)
    assert b'"n":20' in row.value().replace(b" ", b"")
    (letter,) = read_messages(stage.bootstrap, aside)
    assert letter.value() == b"{broken"
    assert dict(letter.headers())["penstock.topic"] == job.source.encode()


def test_an_error_in_the_job_file(stage, refused):
    line = refused("import penstock as ps\n\nx = 1 / 0\n", "ZeroDivisionError", code=2)
    assert "job.py:3" in line
    refused("def broken(:\n", r"job\.py:1", code=2)
    refused("import penstock as ps\n", "env.execute", code=2)
    refused("import no_such_module_at_all\n", "no_such_module_at_all", code=2)
    unknown = job_of(stage, ONE_WINDOW).text().replace('ps.sum("amount")', 'ps.sum("amont")')
    line = refused(unknown, "amont", code=2)
    assert re.search(r"job\.py:\d+", line)


def test_a_command_of_its_own_with_an_embedded_cluster_says_it_too(stage):
    """Nothing hangs, and the command ends with its cluster."""
    job = job_of(stage, [*ONE_WINDOW, b"{broken", *ONE_WINDOW])
    said = cli("run", job.write(stage.folder), "--json", cwd=stage.folder, environment=stage.environment)
    shown(said, [job.source, "10"], [3], b"{broken")


def test_a_start_beside_a_running_job_of_that_name_is_told_who_holds_it(stage, shared):
    """By a cluster that is another one."""
    with Scene(stage, Orders(21, 20_000), cluster=shared, rate=2_000) as scene:
        scene.begin()
        scene.wait_checkpoints(1)
        path = scene.job.write(stage.folder)
        said = cli("run", path, cwd=stage.folder, environment=stage.environment)
        assert said.code != 0
        assert "process" in said.err
        assert str(scene.cluster.jobmanager.pid) in said.err
        assert scene.state() == "RUNNING"
        scene.cancel()
