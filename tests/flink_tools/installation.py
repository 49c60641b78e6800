"""Flink's own tools, out of its distribution on PyPI: in a folder of the cache, installed once per machine.

`apache-flink-libraries` holds the command line and, inside `flink-dist`, what its dashboard is made of.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import class_archives

from penstock.core.errors import PenstockError
from penstock_lab.servers import class_archive
from penstock_lab.servers.provision import cache_root, fresh, java_program, locked

VERSION = "2.3.0"
PINNED = (
    f"apache-flink-libraries=={VERSION} "
    "--hash=sha256:38ece876553286b3a285cf344c2d2038f8a7ca10da5df54d5107250386d64151\n"
)
_LIMIT_S = 1800
#: The command line reads its configuration from a folder: nothing of it is Flink's default but the log.
_LOG = """rootLogger.level = WARN
rootLogger.appenderRef.file.ref = FileAppender
appender.file.name = FileAppender
appender.file.type = FILE
appender.file.append = false
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c %x - %m%n
"""


def home() -> Path:
    """Where the distribution lies once `ensure` has run."""
    return cache_root() / "flink" / VERSION


def dist_jar() -> Path:
    """The jar with the dashboard's files under `web/`."""
    return home() / "pyflink" / "lib" / f"flink-dist-{VERSION}.jar"


def ensure(progress=lambda _text: None) -> None:
    """Install what is missing; raises PenstockError with the way out."""
    java_program()
    if dist_jar().exists():
        return
    with locked("flink", progress):
        if dist_jar().exists():
            return
        progress(f"installing Flink {VERSION}'s distribution (330 MB, once)")
        stage = fresh(home().with_name(f"{VERSION}.new"))
        stage.mkdir(parents=True)
        pinned = stage / "requirements.txt"
        pinned.write_text(PINNED, encoding="utf-8")
        command = [*_installer(), "--target", str(stage), "--no-deps", "--require-hashes", "-r", str(pinned)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-400:]
            raise PenstockError(f"Flink's distribution cannot be installed: {said}", hint="is the network reachable?")
        stage.rename(fresh(home()))


def _installer() -> list[str]:
    """uv or pip, whichever is there; pip of the interpreter that made the environment has to do where ours has none."""
    own = cache_root() / "tools" / "uv" / "bin" / "uv"
    if uv := shutil.which("uv") or (str(own) if own.exists() else None):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    if subprocess.run([*pip[:3], "--version"], capture_output=True).returncode:
        raise PenstockError("neither uv nor pip is there", hint="python3 infra/bootstrap.py setup makes both possible")
    return pip


class FlinkCli:
    """Runs `flink` against one REST address: the class that Flink's script of that name starts, with its options."""

    def __init__(self, folder: Path, address: str, token: str = "", options: dict[str, object] | None = None) -> None:
        """`address` is host:port; a token goes as a header, which Flink's client takes from its environment.

        `options` are given as `-D name=value` with every command.
        """
        self.address = address
        self._options = [word for name, value in (options or {}).items() for word in ("-D", f"{name}={value}")]
        self._headers = {"FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {token}"} if token else {}
        self._conf = folder / "flink-conf"
        self._conf.mkdir(exist_ok=True)
        host, port = address.rsplit(":", 1)
        settings = f"rest.address: {host}\nrest.port: {port}\njobmanager.rpc.address: {host}\n"
        (self._conf / "config.yaml").write_text(settings, encoding="utf-8")
        (self._conf / "log4j-cli.properties").write_text(_LOG, encoding="utf-8")

    def __call__(self, *words: str, code: int = 0) -> str:
        """The output of a command that has to end with this code."""
        log = f"-Dlog.file={self._conf}/cli.log", f"-Dlog4j.configurationFile={self._conf}/log4j-cli.properties"
        classes = ["-cp", f"{home()}/pyflink/lib/*", "org.apache.flink.client.cli.CliFrontend"]
        action, *rest = words
        own = {"FLINK_CONF_DIR": str(self._conf), "JAVA_TOOL_OPTIONS": class_archives.SHORT_RUNS}
        environment = {**os.environ, **own, **self._headers}
        java = java_program()
        archive = class_archives.place(f"flink-{VERSION}-{action}", java)
        mapping = class_archive.mapping(archive)
        with contextlib.nullcontext(mapping) if mapping else class_archive.writing(archive) as options:
            command = [java, *options, *log, *classes, action, *self._options, *rest]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == code, f"flink {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr
