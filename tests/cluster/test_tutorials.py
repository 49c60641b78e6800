"""The tutorials run as they are written: each file is saved, each command succeeds and prints what the page says."""

import json
import signal
import uuid

import pytest
from tests.cluster import proc_tree
from tests.support.tutorials import Tutorial

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
#: Tests run beside each other: no cluster may take the default port.
ANY_PORT = {"penstock cluster start": "penstock cluster start --rest-port 0"}


@pytest.fixture
def read(tmp_path):
    """Return a runner of a tutorial; a cluster that stays behind is killed."""

    def run(name, **replaced):
        return Tutorial(name, tmp_path, {**ANY_PORT, **replaced}).run()

    yield run
    record = tmp_path / "home" / "cluster.json"
    if record.exists():
        pid = json.loads(record.read_text())["pid"]
        proc_tree.signal_all([pid, *proc_tree.descendants(pid)], signal.SIGKILL)


def test_first_job(read):
    _help, run, again, fresh, test = read("first-job")
    assert '"n":2,"total":8' in run
    assert "nothing was left to do" in again
    assert "FINISHED" in fresh
    assert "1 passed" in test


def test_stateful_function(read):
    test, run = read("stateful-function")
    assert "2 passed" in test
    assert '{"user_id":7,"orders":2}' in run
    assert '{"user_id":8,"orders":1}' in run


def test_kafka_to_kafka(read, kafka_server, topic_prefix):
    replaced = {"127.0.0.1:19092": kafka_server.bootstrap, "kafka-totals": f"{topic_prefix}job"}
    for call, topic in (
        ("topic=", "orders"), ("topic=", "totals"), ("NewTopic[(]", "orders"), ("NewTopic[(]", "totals"),
        ("produce[(]", "orders"), ("TopicPartition[(]", "totals"),
    ):  # fmt: skip
        replaced[f'({call})"{topic}"'] = f'\\1"{topic_prefix}{topic}"'
    *_, killed, result, _end = read("kafka-to-kafka", **replaced)
    assert "SIGKILL" in killed
    assert result.count("[1000, 1000,") == 2


def test_operate(read):
    name = f"live-{uuid.uuid4().hex[:8]}"
    start, resume, rescale, better, worse, killed, story, _end = read("operate", **{r"\blive\b(?!\.py)": name})
    assert "RUNNING" in start
    assert "it resumes from" in resume
    assert "x1" in rescale
    assert "upgrade completed" in better
    assert "rolled back" in worse
    assert "SIGKILL" in killed
    assert all(word in story for word in ("upgrade", "rescale", "failure"))
