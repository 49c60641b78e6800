"""Missing tools are named with the way out; what is there is not fetched again."""

import stat

import pytest

from penstock.core.errors import PenstockError, UsageError
from penstock_lab.servers import choose, provision


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an empty cache and an empty PATH; `install` puts a tool on it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def install(name, script):
        path = tools / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return install


JAVA_17 = "echo 'openjdk version \"17.0.1\" 2021-10-19' >&2"
# what Maven is asked for: the folder after -DoutputDirectory=
MAVEN = """
for a in "$@"; do case "$a" in -DoutputDirectory=*) d="${a#*=}";; esac; done
/bin/mkdir -p "$d" && : > "$d/kafka_2.13-4.3.1.jar" && echo run >> "$PENSTOCK_CACHE/calls"
"""


def test_no_java(machine):
    with pytest.raises(PenstockError, match="Java 17 or newer is needed") as error:
        provision.ensure_kafka_jars()
    assert "apt-get install -y openjdk-17-jre-headless" in error.value.hint


def test_old_java_is_named(machine):
    machine("java", "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(PenstockError, match=r'says: openjdk version "11.0.2"'):
        provision.ensure_kafka_jars()


def test_no_maven(machine):
    machine("java", JAVA_17)
    with pytest.raises(PenstockError, match="Maven") as error:
        provision.ensure_kafka_jars()
    assert "apt-get install -y maven" in error.value.hint


def test_maven_fails(machine):
    machine("java", JAVA_17)
    machine("mvn", "echo Could not transfer artifact; exit 1")
    with pytest.raises(PenstockError, match="failed with code 1: Could not transfer artifact") as error:
        provision.ensure_kafka_jars()
    assert "network" in error.value.hint
    assert not provision.kafka_is_ready()


def test_jars_are_fetched_once(machine):
    machine("java", JAVA_17)
    machine("mvn", MAVEN)
    said = []
    home = provision.ensure_kafka_jars(said.append)
    assert provision.ensure_kafka_jars(said.append) == home
    assert [jar.name for jar in (home / "libs").iterdir()] == ["kafka_2.13-4.3.1.jar"]
    assert (provision.cache_root() / "calls").read_text() == "run\n"
    assert said[0] == "fetching Kafka 4.3.1 with Maven"
    assert not (home / "stage").exists()


def test_old_go_is_named(machine, monkeypatch):
    machine("go", "echo go version go1.20.3 linux/amd64")
    with pytest.raises(PenstockError, match=r"Go 1\.24 or newer is needed .* says: go version go1\.20"):
        provision.ensure_minio()


def test_minio_is_built_once(machine):
    machine("go", 'if [ "$1" = version ]; then echo go version go1.26.8; else : > "$GOBIN/minio"; fi')
    machine("nice", 'shift 2; exec "$@"')
    path = provision.ensure_minio()
    assert path == provision.minio_binary()
    path.chmod(0o700)
    machine("go", "exit 1")
    assert provision.ensure_minio() == path


def test_unknown_server_mode(monkeypatch):
    monkeypatch.setenv("PENSTOCK_SERVERS", "cloud")
    with pytest.raises(UsageError, match="PENSTOCK_SERVERS is 'cloud'"):
        choose.uses_containers()


def test_the_pom_names_the_version_of_the_cache_folder():
    assert f"<version>{provision.KAFKA_VERSION}</version>" in provision.package_text("kafka-pom.xml")
