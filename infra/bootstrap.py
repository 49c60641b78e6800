"""The commands of the README, on a machine with nothing but Python: `demo` and `test`.

Installs missing parts (virtual environments, locked packages, programs of the real servers), skips existing ones, then
becomes the command itself. Standard library only: no package is installed when it starts. Airflow has a separate
environment, `.venv-airflow`, for its tests and for `infra/airflow.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "penstock-installed.sha256"
AIRFLOW_VENV = ROOT / ".venv-airflow"
AIRFLOW_LOCK = ROOT / "infra" / "airflow.lock"
VERSIONS = ((3, 13), (3, 12), (3, 11))
REPORT_EVERY_S = 10.0
NEEDED_BYTES = 5_000_000_000
# once here, so that the processes of the first cluster do not all compile at the same time; the imports compile the
# sources too
KERNELS = """
import penstock.client.kernels
penstock.client.kernels.compile_kernels(lambda done, total: print(f"{done} of {total} modules", flush=True))
import penstock.cli.main, penstock.cli.start.run, penstock.cli.serve
import penstock.rest.server.app, penstock.rest.server.http_server
import penstock.taskmanager.main, penstock.taskmanager.template
import penstock.kernels.compiler.build, penstock_connectors.kafka.client._kernels, minio.error
import penstock_connectors.formats.json_table, penstock_connectors.formats.json_writer
import penstock_connectors.datagen, penstock_connectors.files, penstock.api.environment
penstock.taskmanager.template.warm_up()
"""
# levels of the tests without servers, and those that use a web interface
WITHOUT_SERVERS = {"unit", "property", "sim", "golden", "tidy", "ui"}
WITH_BROWSER = {"ui", "airflow", "flink_tools", ""}
# depth of a run: the levels it runs, all if empty (see tests/support/depth.py for its other effects)
_FAST_SIM = ("seeds", "directed")
FAST = ["tests/unit", "tests/property", *(f"tests/sim/test_{name}.py" for name in _FAST_SIM), "tests/tidy"]
DEPTHS = {"fast": FAST, "nightly": []}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
COMMANDS = {"demo", "test", "setup", "servers", "airflow", "wheel"}
USAGE = (
    "usage: python3 infra/bootstrap.py demo [--kafka] | test [fast|nightly] [ARGUMENTS] | setup"
    " | servers [kafka|minio] | airflow | wheel [PYTHON ...]"
)
# the kernels of a wheel are compiled for a baseline of processors, not for the one of this machine
SHIPPED = ROOT / "platform" / "penstock" / "kernels" / "shipped"
WHEEL_KERNELS = """
import os, sys
from penstock.kernels.compiler import bundle, native
name, _, features = native.baseline().partition(" ")
os.environ |= {native.CPU_NAME: name, native.CPU_FEATURES: features, bundle.FOLDER: sys.argv[1]}
from penstock.client.kernels import compile_kernels
compile_kernels(lambda done, total: print(f"{done} of {total} modules", flush=True))
"""


class BootstrapError(Exception):
    """A step that the user has to do first; printed as one line."""


def main(arguments: list[str]) -> int:
    """Prepare, then replace this process by the command."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "test":
        rest = pytest_arguments(rest)
    if command not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    # a process that compiles the source of each imported module takes twice as long to start
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        with _exclusive():
            install()
            if command == "airflow" or (command == "test" and _wants_airflow(rest)):
                install_airflow()
            if command == "wheel":
                build_wheel(rest)
        if (
            command == "servers"
            or (command == "demo" and "--kafka" in rest)
            or (command == "test" and _wants_servers(rest))
        ):
            prepare_servers(rest if command == "servers" else ())
        if command == "test" and _wants_browser(rest):
            prepare_browser()
    except BootstrapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if command in {"setup", "servers", "airflow", "wheel"}:
        return 0
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", os.defpath)])
    line = (
        [str(VENV / "bin" / "penstock"), "demo", *rest] if command == "demo" else [str(PYTHON), "-m", "pytest", *rest]
    )
    if command == "test":
        _warn_of_little_space()
        os.chdir(ROOT)
    sys.stdout.flush()
    os.execv(line[0], line)  # noqa: S606  the list is ours, and no shell is wanted
    return 0


# --- tests


def _warn_of_little_space() -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < NEEDED_BYTES:
        say(
            f"{free / 1e9:.1f} GB are free in {tempfile.gettempdir()}; the whole suite needs"
            f" {NEEDED_BYTES / 1e9:.0f} GB: tests may fail with `No space left on device` (free some, or set TMPDIR)"
        )


def pytest_arguments(given: Sequence[str]) -> list[str]:
    """Return pytest's arguments for `test [fast | nightly] [pytest arguments]`, and set the depth for it.

    Without paths, the tests of the depth run. The fast ones compute: they get a process for each core. The others wait
    for servers half of the time: they get two.
    """
    depth = given[0] if given and given[0] in DEPTHS else "gate"
    rest = list(given[1:] if depth != "gate" else given)
    os.environ["PENSTOCK_TEST_DEPTH"] = depth
    if _levels(rest):
        return rest
    rest += DEPTHS.get(depth, [])
    workers = (os.cpu_count() or 1) * (1 if depth == "fast" else 2)
    rest += [f"-n{workers}", f"--junitxml={ROOT / '.cache' / 'junit.xml'}"]
    if depth == "nightly":
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        seed = int(head.stdout[:8] or "0", 16)
        os.environ["PENSTOCK_TEST_SEED"] = str(seed)
        rest += [f"--hypothesis-seed={seed}"]
        say(f"seed of this run: {seed}")
    return rest


# --- packages


def install() -> None:
    """Create the virtual environment and install the locked packages, unless it has exactly these."""
    _environment(VENV, LOCK, STAMP, [("compiling the kernels", KERNELS)])


def install_airflow() -> None:
    """Do the same for Airflow's environment: its interpreter is `.venv`'s, so that the compiled kernels serve both."""
    _environment(AIRFLOW_VENV, AIRFLOW_LOCK, AIRFLOW_VENV / STAMP.name, [])


def build_wheel(interpreters: Sequence[str]) -> None:
    """Build the source archive and a wheel with compiled kernels: for the Python of `.venv` and the given ones."""
    shutil.rmtree(SHIPPED, ignore_errors=True)
    for old in (ROOT / "dist").glob("penstock-*"):
        old.unlink()
    try:
        for python in [str(PYTHON), *(str(_wheel_environment(python)) for python in interpreters)]:
            version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
            run(f"compiling the kernels for {version}", [python, "-c", WHEEL_KERNELS, str(SHIPPED)])
        # both from the tree: a wheel made from the source archive would have no compiled kernels
        build = [str(PYTHON), "-m", "build", "--sdist", "--wheel", "--outdir", str(ROOT / "dist"), str(ROOT)]
        run("building the wheel", build)
    finally:
        shutil.rmtree(SHIPPED, ignore_errors=True)


def _wheel_environment(python: str) -> Path:
    """Create an environment with the locked versions of what the kernels need."""
    venv = ROOT / ".cache" / "wheel" / Path(python).name
    run(f"creating an environment of {python}", [python, "-m", "venv", "--clear", str(venv)])
    inside = venv / "bin" / "python"
    # the lock's hashes are of no use here: it is a list of bounds for the packages of one extra
    bounds = venv / "bounds.txt"
    lines = (line.removesuffix(" \\") for line in LOCK.read_text().splitlines() if "==" in line)
    bounds.write_text("\n".join(lines))
    install = ["install", "--quiet", "-c", str(bounds), f"{ROOT}[kafka]"]
    run(f"installing the packages of {python}", [str(inside), "-m", "pip", *install])
    return inside


def _environment(venv: Path, lock: Path, stamp: Path, steps: Sequence[tuple[str, str]]) -> None:
    """Create a virtual environment; `steps` are programs that run in it at the end."""
    wanted = hashlib.sha256(lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    inside = venv / "bin" / "python"
    if inside.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    python = _python() if venv == VENV else str(PYTHON)
    uv = _uv(python)
    if not _usable(inside):
        shutil.rmtree(venv, ignore_errors=True)
        make = [uv, "venv", "--quiet", "--python", python] if uv else [python, "-m", "venv"]
        run(f"creating the virtual environment {venv.name}", [*make, str(venv)])
    if uv:
        try:
            _install_with([uv, "pip", "install", "--quiet", "--python", str(inside)], lock)
        except BootstrapError as error:
            say(f"{error}; trying again with pip")
            uv = None
    if not uv:
        if not (venv / "bin" / "pip").exists():
            run(f"adding pip to {venv.name}", [str(inside), "-m", "ensurepip"])
        _install_with([str(inside), "-m", "pip", "install", "--quiet"], lock)
    elif Path(uv).is_relative_to(_cache()):  # each build of pyspark leaves 2 GB that nothing uses again
        run("removing what `uv` no longer needs from its own cache", [uv, "cache", "prune", "--quiet"])
    for title, program in steps:
        run(title, [str(inside), "-c", program])
    stamp.write_text(wanted)


def _install_with(installer: Sequence[str], lock: Path) -> None:
    run(f"installing the packages of {lock.name}", [*installer, "--require-hashes", "-r", str(lock)])
    run("installing penstock itself", [*installer, "--no-deps", "-e", str(ROOT)])


def _usable(python: Path) -> bool:
    if not python.exists():
        return False
    probe = [str(python), "-c", f"import sys; sys.exit(sys.version_info[:2] not in {VERSIONS!r})"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _python() -> str:
    """Return an interpreter of a supported version: this one, or one in PATH."""
    if sys.version_info[:2] in VERSIONS:
        return sys.executable
    for major, minor in VERSIONS:
        found = shutil.which(f"python{major}.{minor}")
        if found and _usable(Path(found)):
            return found
    running = ".".join(map(str, sys.version_info[:3]))
    hint = "install one, on Debian or Ubuntu: apt-get install -y python3.11-venv"
    raise BootstrapError(f"Python 3.11, 3.12 or 3.13 is needed, this is {running}: {hint}")


def _uv(python: str) -> str | None:
    """Return uv: the machine's, else one in the cache; None if it is not available (then pip is used)."""
    if found := shutil.which("uv"):
        return found
    home = _cache() / "tools" / "uv"
    program = home / "bin" / "uv"
    if (
        program.exists()
        and subprocess.run([str(program), "--version"], capture_output=True, check=False).returncode == 0
    ):
        return str(program)
    try:
        run("fetching uv, the installer", [python, "-m", "venv", "--clear", str(home)])
        run("fetching uv, the installer", [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    except BootstrapError as error:
        shutil.rmtree(home, ignore_errors=True)
        if "ensurepip" in str(error):
            version = ".".join(map(str, sys.version_info[:2]))
            raise BootstrapError(
                f"this Python cannot make virtual environments: apt-get install -y python{version}-venv"
            ) from None
        say(f"uv is not available ({error}); continuing with pip, which is slower")
        return None
    return str(program)


# --- servers


def _wants_servers(arguments: Sequence[str]) -> bool:
    """Return whether these pytest arguments may select a test with a server: some path is of a level with servers."""
    levels = _levels(arguments)
    return not levels or not levels <= WITHOUT_SERVERS


def _wants_browser(arguments: Sequence[str]) -> bool:
    """Return whether these pytest arguments may select a test with a browser."""
    levels = _levels(arguments)
    return not levels or bool(levels & WITH_BROWSER)


def _wants_airflow(arguments: Sequence[str]) -> bool:
    """Return whether these pytest arguments may select a test with Airflow."""
    levels = _levels(arguments)
    return not levels or bool(levels & {"airflow", ""})


def _levels(arguments: Sequence[str]) -> set[str]:
    """Return the folders below `tests` that the paths among pytest's arguments name; "" for all of them."""
    paths = [Path(argument.partition("::")[0]) for argument in arguments if not argument.startswith("-")]
    tests = [path.parts[path.parts.index("tests") + 1 :] for path in paths if "tests" in path.parts]
    return {parts[0] if parts else "" for parts in tests}


def prepare_servers(names: Sequence[str] = ()) -> None:
    """Fetch Kafka and build MinIO once per machine, or the named one, through the module that also starts them."""
    _system_packages()
    done = subprocess.run([str(PYTHON), "-m", "penstock_lab.servers", "ensure", *names], check=False)
    if done.returncode != 0:
        raise BootstrapError("the servers for Kafka and MinIO could not be prepared (see above)")


def _system_packages() -> None:
    """Install Java and Maven on a CI machine that may be changed; elsewhere the error names the packages."""
    missing = [
        package for tool, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")) if not shutil.which(tool)
    ]
    if missing and os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install(missing)


def prepare_browser() -> None:
    """Find or install Chromium: an existing one, for root on Debian or Ubuntu the distribution's, else playwright's."""
    if os.environ.get("PENSTOCK_CHROMIUM") or any(map(shutil.which, BROWSERS)):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install(["chromium"])
        return
    try:
        run("fetching a browser", [str(PYTHON), "-m", "playwright", "install", "chromium"])
    except BootstrapError as error:
        say(f"{error}; the tests of the web interface will fail: install chromium, or set PENSTOCK_CHROMIUM to one")


def _apt_install(packages: Sequence[str]) -> None:
    run("apt-get update", ["apt-get", "update", "-qq"])
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    run(f"apt-get install {' '.join(packages)}", line, environment)


# --- running and telling


def run(title: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a program to its end and print the progress; show its output only if it fails."""
    started = time.monotonic()
    log = ROOT / ".cache" / "bootstrap.log"
    log.parent.mkdir(exist_ok=True)
    live = sys.stderr.isatty()
    if not live:
        say(f"{title} ...")
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            _watch(process, title, log, live=live)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise BootstrapError("interrupted; run the same command again to continue") from None
    seconds = time.monotonic() - started
    if process.returncode != 0:
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise BootstrapError(
            f"{title} failed: {' | '.join(said[-3:]) or 'no output'} (is the network reachable? full output: {log})"
        )
    say(f"{title}: done in {seconds:.0f} s")


def _watch(process: subprocess.Popen[bytes], title: str, log: Path, *, live: bool) -> None:
    started = reported = time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        now = time.monotonic()
        if live:
            sys.stderr.write(f"\r\033[K{title} ... {progress_of(log)}{now - started:.0f} s")
            sys.stderr.flush()
        elif now - reported >= REPORT_EVERY_S:
            reported = now
            say(f"{title} ... {progress_of(log)}{now - started:.0f} s")
    if live:
        sys.stderr.write("\r\033[K")


def progress_of(log: Path) -> str:
    """Return the newest progress that a step has printed, such as `7 of 19 modules, `; empty if it prints none."""
    found = re.findall(r"^(\d+ of \d+ \w+)$", log.read_text(errors="replace"), re.MULTILINE)
    return f"{found[-1]}, " if found else ""


def say(line: str) -> None:
    """Print to standard error: standard output belongs to the command."""
    print(line, file=sys.stderr, flush=True)


def _cache() -> Path:
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "penstock"


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    """Let one process at a time install into this checkout."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / "bootstrap.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that is installing into this checkout")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
