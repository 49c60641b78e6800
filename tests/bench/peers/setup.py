"""Sets up the engines that `penstock bench --peers DIR` runs beside penstock: `setup.py DIR [--only NAME,...]`.

Fills DIR on a fresh machine with Python's, Maven's and Git's ordinary clients (a JVM 17 with `javac`, and `mvn`, are to
be there: `apt-get install openjdk-17-jdk-headless maven`): a venv for each of Flink, Bytewax and Quix Streams, Flink's
Kafka connector, the compiled programs beside this file. What is there already stays. DIR/peers.json, which `penstock
bench` reads, names what was set up. `ceiling` is a file of its own, given with --ceiling; `nexmark` is the connector
and the queries of Nexmark's own repository, cloned from --nexmark (a URL or a local clone).
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from catalog import peers

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "flink": ("apache-flink==2.3.0", "pemja==0.5.7"),
    "bytewax": ("bytewax==0.21.1", "numpy==2.4.6"),
    "quix": ("quixstreams==3.28.1",),
}
KAFKA_CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
NEXMARK = "https://github.com/nexmark/nexmark"
FACTORIES = ("EventsFactory", "BidsFactory", "SumsFactory")
LOG = """rootLogger.level=ERROR
rootLogger.appenderRef.c.ref=C
appender.c.name=C
appender.c.type=CONSOLE
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{HH:mm:ss} %-5p %c{1} %m%n
"""
SERVICES = "META-INF/services/org.apache.flink.table.factories.Factory"
LIMIT_SECONDS = 1800


def run(*command, cwd=None):
    """Run a command; end with what it said when it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except FileNotFoundError:
        sys.exit(f"setup.py: {command[0]} is not installed")
    if done.returncode:
        sys.exit(f"setup.py: {' '.join(map(str, command[:4]))} failed: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def venv(folder, name):
    """Make a venv with the packages of a peer."""
    place = folder / "venvs" / name
    if not (place / "bin/python").exists():
        run(sys.executable, "-m", "venv", place)
    names = [package.partition("==")[0] for package in PACKAGES[name]]
    script = "import importlib.metadata as m, sys; [m.version(name) for name in sys.argv[1:]]"
    if subprocess.run([place / "bin/python", "-c", script, *names], capture_output=True, timeout=60).returncode:
        run(place / "bin/python", "-m", "pip", "install", "-q", *PACKAGES[name])


def jars(folder):
    """Return Flink's jars, as they lie in the Python package."""
    found = sorted((folder / "venvs/flink").glob("lib/python3.*/site-packages/pyflink/lib"))
    if not found:
        sys.exit("setup.py: the flink venv has no jars")
    return found[0]


def compile_java(folder, target, sources, *more):
    """Compile Java sources against Flink into DIR/build/TARGET."""
    place = folder / "build" / target
    fresh = place.with_name(f"{target}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / SERVICES).parent.mkdir(parents=True)
    run("javac", "-nowarn", "-cp", f"{jars(folder)}/*", *more, "-d", fresh, *sources)
    shutil.rmtree(place, ignore_errors=True)
    return fresh.rename(place)


def flink(folder):
    """Flink and PyFlink: the package holds the jars; the connector comes from Maven, the jobs from beside this file."""
    venv(folder, "flink")
    if not list((folder / "jars/flink").glob("flink-sql-connector-kafka-*.jar")):
        run("mvn", "-q", "dependency:copy", f"-Dartifact={KAFKA_CONNECTOR}", f"-DoutputDirectory={folder}/jars/flink")
    place = compile_java(folder, "peers", sorted((HERE / "java/peers").glob("*.java")))
    (place / SERVICES).write_text("".join(f"peers.Tables${name}\n" for name in FACTORIES), encoding="utf-8")
    (folder / "build/peers.log4j2.properties").write_text(LOG, encoding="utf-8")


def nexmark(folder, origin):
    """Nexmark's own source of events and queries, compiled from its repository."""
    clone = folder / "nexmark"
    if not clone.exists():
        run("git", "clone", "-q", "--depth", "1", origin, clone)
    java, resources = clone / "nexmark-flink/src/main/java", clone / "nexmark-flink/src/main/resources"
    factory = java / "com/github/nexmark/flink/source/NexmarkTableSourceFactory.java"
    place = compile_java(folder, "nexmark", [factory], "-sourcepath", java)
    shutil.copy(resources / SERVICES, place / SERVICES)
    shutil.copytree(resources / "queries", folder / "build/queries", dirs_exist_ok=True)


def ceiling(folder, given):
    """The bare loop, which is a file somewhere."""
    target = folder / "ceiling_prototype.py"
    if given is not None and given.resolve() != target:
        shutil.copy(given, target)
    if not target.exists():
        sys.exit("setup.py: the ceiling is to be named with --ceiling FILE")


def main():
    """Set up what was asked for; write the list of what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="flink,bytewax,quix", help="of flink, bytewax, quix, nexmark, ceiling")
    parser.add_argument("--nexmark", default=NEXMARK, help="repository of Nexmark: a URL or a local clone")
    parser.add_argument("--ceiling", type=Path, help="ceiling_prototype.py")
    chosen = parser.parse_args()
    names = [name for name in chosen.only.split(",") if name]
    unknown = set(names) - {*PACKAGES, "nexmark", "ceiling"}
    if unknown:
        parser.error(f"--only: there is no peer {', '.join(sorted(unknown))}")
    folder = chosen.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    marks = folder / "set_up.json"
    there = set(json.loads(marks.read_text(encoding="utf-8"))) if marks.exists() else set()
    for name in names:
        if name == "flink":
            flink(folder)
        elif name == "nexmark":
            nexmark(folder, chosen.nexmark)
        elif name == "ceiling":
            ceiling(folder, chosen.ceiling)
        else:
            venv(folder, name)
        there.add(name)
        marks.write_text(json.dumps(sorted(there)), encoding="utf-8")
    shutil.copytree(HERE, folder / "programs", dirs_exist_ok=True, ignore=shutil.ignore_patterns("java", "__pycache__"))
    listed = peers(there, jars(folder) if "flink" in there else Path())
    (folder / "peers.json").write_text(json.dumps({"peers": listed}, indent=1), encoding="utf-8")
    sys.stdout.write(f"{len(listed)} entries in {folder}/peers.json: {', '.join(sorted(there))}\n")


if __name__ == "__main__":
    main()
