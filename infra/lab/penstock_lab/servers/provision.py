"""Puts the servers' programs into the cache, once per machine: Kafka's jars by Maven, MinIO by the Go tool.

Called by `infra/bootstrap.py` (through `__main__`), the demo and the test fixtures. A step is skipped if its result
exists; a file lock keeps two processes from doing it twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock_lab.servers.spec import Progress, silent

KAFKA_VERSION = "4.3.1"
MINIO_MODULE = "github.com/minio/minio"
# the only version that the module proxy serves: MinIO's release tags are not semantic versions
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

JAVA_MINIMUM = 17
GO_MINIMUM = (1, 24)
FETCH_LIMIT_MS = 15 * 60_000
BUILD_LIMIT_MS = 45 * 60_000
LOCK_LIMIT_MS = 50 * 60_000
REPORT_EVERY_MS = 5_000
POLL_MS = 200

_clock = SystemClock()


def cache_root() -> Path:
    """Return the folder for programs outside a checkout: $PENSTOCK_CACHE, else `~/.cache/penstock`."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "penstock"


def kafka_home() -> Path:
    """Return the folder of `libs/*.jar`, which `ensure_kafka_jars` fills."""
    return cache_root() / "kafka" / KAFKA_VERSION


def minio_binary() -> Path:
    """Return the path of the MinIO program, which `ensure_minio` builds."""
    return cache_root() / "minio" / MINIO_VERSION / "minio"


def kafka_is_ready() -> bool:
    """Return whether the jars are in the cache."""
    return any((kafka_home() / "libs").glob("kafka_2.13-*.jar"))


def minio_is_ready() -> bool:
    """Return whether the program is in the cache."""
    return os.access(minio_binary(), os.X_OK)


def java_program() -> str:
    """Return the path of a Java of at least version 17."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "install it, on Debian or Ubuntu: apt-get install -y openjdk-17-jre-headless"
    if java is None or not os.access(java, os.X_OK):
        raise PenstockError(f"Java {JAVA_MINIMUM} or newer is needed to run Kafka and was not found", hint=hint)
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', text)
    if found is None or int(found[1]) < JAVA_MINIMUM:
        said = (text.splitlines() or ["nothing"])[0]
        raise PenstockError(f"Java {JAVA_MINIMUM} or newer is needed to run Kafka; {java} says: {said}", hint=hint)
    return java


def go_program() -> str:
    """Return the path of a Go program that can build MinIO."""
    wanted = ".".join(map(str, GO_MINIMUM))
    hint = f"install Go {wanted} or newer from https://go.dev/dl and put its bin folder into PATH"
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise PenstockError(f"Go {wanted} or newer is needed to build MinIO and was not found", hint=hint)
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < GO_MINIMUM:
        raise PenstockError(f"Go {wanted} or newer is needed to build MinIO; {go} says: {text.strip()}", hint=hint)
    return go


def ensure_kafka_jars(progress: Progress = silent) -> Path:
    """Fetch the broker's jars if they are missing; return their folder."""
    java_program()
    if not kafka_is_ready():
        with locked("kafka", progress):
            if not kafka_is_ready():
                fetch_jars(f"Kafka {KAFKA_VERSION}", kafka_home(), package_text("kafka-pom.xml"), progress)
    return kafka_home()


def fetch_jars(title: str, home: Path, pom: str, progress: Progress) -> None:
    """Fetch the dependencies of a Maven project into `libs` of a folder; the caller holds the lock."""
    maven = shutil.which("mvn")
    if maven is None:
        raise PenstockError(
            f"Maven (mvn) is needed to fetch {title} and was not found",
            hint="install it, on Debian or Ubuntu: apt-get install -y maven",
        )
    with _staging(home) as stage:
        (stage / "pom.xml").write_text(pom)
        options = ["-B", "-ntp", COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={stage / 'libs'}"]
        _run(Step(f"fetching {title} with Maven", [maven, *options], stage, FETCH_LIMIT_MS), progress)
        (stage / "libs").rename(fresh(home / "libs"))


def ensure_minio(progress: Progress = silent) -> Path:
    """Build MinIO if it is missing (several minutes of CPU time); return the program's path."""
    program = minio_binary()
    if minio_is_ready():
        return program
    go = go_program()
    with locked("minio", progress):
        if minio_is_ready():
            return program
        with _staging(program.parent) as stage:
            # -s -w: no symbol tables, 112 MB instead of 150; -v names each compiled package, for the progress
            options = ["install", "-v", "-ldflags", "-s -w", f"{MINIO_MODULE}@{MINIO_VERSION}"]
            env = {"GOBIN": str(stage), "GOFLAGS": "-mod=mod"}
            argv = ["nice", "-n", "10", go, *options]
            _run(Step("building MinIO with Go (some minutes, once)", argv, stage, BUILD_LIMIT_MS, env), progress)
            (stage / "minio").replace(program)
    return program


def package_text(name: str) -> str:
    """Return a data file of this package."""
    return resources.files("penstock_lab.servers").joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Step:
    """A long-running external program."""

    title: str
    argv: Sequence[str]
    folder: Path
    limit_ms: int
    env: Mapping[str, str] = field(default_factory=dict)


def _run(step: Step, progress: Progress) -> None:
    """Run a step to its end with progress lines; its output is kept in a file for error messages."""
    progress(step.title)
    log = step.folder / "output.log"
    started = reported = _clock.monotonic_ms()
    with log.open("wb") as output:
        process = subprocess.Popen(
            step.argv,
            cwd=step.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **step.env},
        )
        try:
            while process.poll() is None:
                _clock.sleep_ms(POLL_MS)
                now = _clock.monotonic_ms()
                if now - started > step.limit_ms:
                    raise PenstockError(f"{step.title}: not done after {step.limit_ms // 60_000} minutes")
                if now - reported >= REPORT_EVERY_MS:
                    reported = now
                    lines = log.read_bytes().count(b"\n")
                    progress(f"{step.title}: {(now - started) / 1000:.0f} s, {lines} steps")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise PenstockError(
            f"{step.title}: failed with code {process.returncode}: {' | '.join(said[-3:])}",
            hint="check the network; the command was: " + " ".join(step.argv),
        )
    progress(f"{step.title}: done in {(_clock.monotonic_ms() - started) / 1000:.0f} s")


def fresh(path: Path) -> Path:
    """Delete the remains of an unfinished attempt at `path`; return `path`."""
    shutil.rmtree(path, ignore_errors=True)
    return path


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """Yield a scratch folder beside the result, so that the result can be moved by a rename."""
    home.mkdir(parents=True, exist_ok=True)
    stage = fresh(home / "stage")
    stage.mkdir()
    yield stage
    shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def locked(name: str, progress: Progress) -> Iterator[None]:
    """Hold the machine-wide lock for one kind of program."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as handle:
        started = reported = _clock.monotonic_ms()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = _clock.monotonic_ms()
                if now - started > LOCK_LIMIT_MS:
                    raise PenstockError(f"another process has held {handle.name} for too long") from None
                if now >= reported:
                    reported = now + REPORT_EVERY_MS
                    progress(f"waiting for another process that is preparing {name}")
                _clock.sleep_ms(POLL_MS)
        yield
