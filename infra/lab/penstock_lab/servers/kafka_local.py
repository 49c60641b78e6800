"""A Kafka broker as a local process, from the cached jars.

Chosen by `choose.start_kafka` if no Docker engine answers. A new broker starts in under two seconds: the storage is
copied from a formatted template, and the JVM loads its classes from an archive. Both are made once per machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock_lab.servers import class_archive, provision
from penstock_lab.servers.process import LOOPBACK, Command, LocalProcess, accepts, free_port
from penstock_lab.servers.spec import Progress, silent

READY_MARK = "Kafka Server started"
START_LIMIT_MS = 90_000
STOP_GRACE_MS = 20_000
CLUSTER_ID = "cGVuc3RvY2stbG9jYWwtMQ"
FORMAT_LIMIT_S = 120

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    # a job with a misspelled topic must get an error
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # after a kill -9 the controller waits for the old session: 2 s instead of 9 s
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "transaction.max.timeout.ms": "3600000",
    # an idle broker writes nothing: the default is a record of metadata every 500 ms
    "metadata.max.idle.interval.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.segment.bytes": "268435456",
    # generated records have event times of past years: the default deletes them minutes after the start
    "log.retention.ms": "-1",
}

JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)


class LocalKafka:
    """A `KafkaServer` with log, settings and data in `data_dir`."""

    name = "Kafka"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Progress = silent,
    ) -> None:
        """Prepare the broker; `settings` override its defaults."""
        self._data = data_dir.absolute()
        self._port = port or free_port()
        self._controller_port = free_port()
        self._settings = dict(settings or {})
        self._progress = progress
        self._process: LocalProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def endpoint(self) -> str:
        return self.bootstrap

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self._data / "kafka.log"

    def start(self) -> None:
        if self.pid is not None:
            return
        home = prepare_kafka(self._progress)
        self._launch(home, class_archive.mapping(home / "broker.jsa"))

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_GRACE_MS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()

    def launch_to_archive(self, home: Path, options: list[str]) -> None:
        """Run once with these options, so that the JVM writes its class archive at the stop."""
        self._launch(home, options)
        self.stop()

    def _launch(self, home: Path, options: list[str]) -> None:
        storage = self._data / "storage"
        if not (storage / "meta.properties").exists():
            shutil.copytree(home / "formatted", storage, dirs_exist_ok=True)
        config = self._data / "server.properties"
        config.write_text(_properties(storage, self._port, self._controller_port, self._settings))
        argv = [*_java(home), *options, "kafka.Kafka", str(config)]
        process = LocalProcess(Command(name=self.name, argv=argv, log=self.log))
        self._process = process
        process.start(lambda: READY_MARK in process.log_text() and accepts(self._port), START_LIMIT_MS)


def _java(home: Path) -> list[str]:
    # listed one by one and sorted: the class archive is valid only for an identical class path
    class_path = os.pathsep.join(str(jar) for jar in sorted((home / "libs").glob("*.jar")))
    logging = f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}"
    return [provision.java_program(), *JVM_OPTIONS, logging, "-cp", class_path]


def _properties(storage: Path, port: int, controller_port: int, overrides: Mapping[str, str]) -> str:
    own = {
        "listeners": f"CLIENT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"CLIENT://{LOOPBACK}:{port}",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "log.dirs": str(storage),
    }
    return "".join(f"{key}={value}\n" for key, value in {**SETTINGS, **own, **overrides}.items())


def prepare_kafka(progress: Progress) -> Path:
    """Fetch the jars, make the formatted template and the class archive, once per machine; return their folder."""
    home = provision.ensure_kafka_jars(progress)
    formatted, archive = home / "formatted", home / "broker.jsa"
    if formatted.exists() and archive.exists():
        return home
    with provision.locked("kafka", progress), tempfile.TemporaryDirectory(prefix="penstock-kafka-") as scratch:
        folder = Path(scratch)
        if not formatted.exists():
            progress("preparing Kafka's storage template and class archive")
            (home / "log4j2.xml").write_text(provision.package_text("log4j2.xml"))
            _format(home, folder)
            part = provision.fresh(home / "formatted.part")
            shutil.copytree(folder / "storage", part)
            part.rename(formatted)
        if not archive.exists():
            # without an archive the broker starts a second later, so a JVM that cannot write one is no error
            with contextlib.suppress(PenstockError), class_archive.writing(archive) as options:
                LocalKafka(folder / "run").launch_to_archive(home, options)
    return home


def _format(home: Path, folder: Path) -> None:
    config = folder / "format.properties"
    config.write_text(_properties(folder / "storage", 1, 2, {}))
    tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
    done = subprocess.run([*_java(home), *tool], capture_output=True, text=True, check=False, timeout=FORMAT_LIMIT_S)
    if done.returncode != 0:
        said = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise PenstockError(f"Kafka could not format its storage: {said}")
