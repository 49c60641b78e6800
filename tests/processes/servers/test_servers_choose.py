"""A container where an engine answers, else a local process; an engine without the image is told, not hidden."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.errors import PenstockError
from penstock_lab.servers import choose, containers

ANSWERS = {
    "200": (b"HTTP/1.0 200 OK\r\n\r\nOK", True),
    "500": (b"HTTP/1.0 500 Internal Server Error\r\n\r\n", False),
    "closed": (b"", False),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_engine_answers_or_not(tmp_path, monkeypatch, case):
    answer, expected = ANSWERS[case]
    path = str(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as engine, ThreadPoolExecutor(1) as pool:
        engine.bind(path)
        engine.listen()

        def serve():
            connection, _ = engine.accept()
            with connection:
                asked = connection.recv(1024)
                connection.sendall(answer)
                return asked

        asked = pool.submit(serve)
        assert containers.engine_answers() is expected
        assert asked.result(10).startswith(b"GET /_ping ")


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "tcp://127.0.0.1", "nonsense"])
def test_no_engine(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert containers.engine_answers() is False


class FakeServer:
    """A server that only notes whether it was started; with `fault` it cannot be."""

    def __init__(self, fault=""):
        self.fault = fault
        self.started = False

    def start(self):
        if self.fault:
            raise PenstockError(self.fault)
        self.started = True


@pytest.fixture
def kafka(monkeypatch):
    """Replace both kinds of broker; returns (local, container)."""
    local, container = FakeServer(), FakeServer()
    monkeypatch.setattr(choose, "LocalKafka", lambda *args, **options: local)
    monkeypatch.setattr(containers, "ContainerKafka", lambda **options: container)
    monkeypatch.setattr(containers, "engine_answers", lambda: True)
    monkeypatch.delenv("PENSTOCK_SERVERS", raising=False)
    return local, container


def test_a_container_where_an_engine_answers(kafka, tmp_path):
    local, container = kafka
    assert choose.start_kafka(tmp_path) is container
    assert container.started
    assert not local.started


def test_a_local_process_where_none_answers(kafka, tmp_path, monkeypatch):
    local, container = kafka
    monkeypatch.setattr(containers, "engine_answers", lambda: False)
    assert choose.start_kafka(tmp_path) is local
    assert local.started
    assert not container.started


def test_an_engine_without_the_image_falls_back_and_says_so(kafka, tmp_path):
    local, container = kafka
    container.fault = "cannot start apache/kafka"
    said = []
    assert choose.start_kafka(tmp_path, progress=said.append) is local
    assert local.started
    assert said == ["cannot start apache/kafka; starting a local process instead"]


def test_asked_for_containers_nothing_else_will_do(kafka, tmp_path, monkeypatch):
    local, container = kafka
    container.fault = "cannot start apache/kafka"
    monkeypatch.setenv("PENSTOCK_SERVERS", "containers")
    with pytest.raises(PenstockError, match="cannot start apache/kafka"):
        choose.start_kafka(tmp_path)
    assert not local.started


def test_asked_for_local_no_engine_is_asked(kafka, tmp_path, monkeypatch):
    local, container = kafka
    monkeypatch.setenv("PENSTOCK_SERVERS", "local")
    assert choose.start_kafka(tmp_path) is local
    assert not container.started
