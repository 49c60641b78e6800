"""Asks the real Flink: `python -m tests.flink.regenerate FOLDER_OF_PEERS [QUESTION...]` writes its answers anew.

FOLDER_OF_PEERS is what `python tests/bench/peers/setup.py FOLDER --only flink` has made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.flink import canonical
from tests.flink.question import JAVA, Question
from tests.flink.questions import QUESTIONS
from tests.flink.streams import STREAMS, checksum, lines

_LIMIT_SECONDS = 1800


def asked(question: Question, folder: Path) -> dict[str, object]:
    """Write the input of a question and return what Flink is asked."""
    files = []
    for number, rows in enumerate(STREAMS[question.stream](question.seed)):
        path = folder / f"{question.stream}-{question.seed}-{number}.json"
        path.write_text(lines([{**row, "ts_ms": row["ts"], "wm_ms": row["wm"]} for row in rows]), encoding="utf-8")
        files.append(str(path))
    return {
        "name": question.name,
        "asked": question.asked,
        "views": list(question.views),
        "settings": dict(question.settings),
        "time_zone": question.time_zone,
        "versions": question.stream == "versions",
        "bound_ms": question.bound_ms,
        "parallelism": len(files),
        "files": files,
    }


def main(peers: str, *names: str) -> None:
    """Ask the questions named, or all: those in SQL first, then the programs."""
    python = Path(peers) / "venvs/flink/bin/python"
    if not python.exists():
        sys.exit(f"{python} is not there: run python tests/bench/peers/setup.py {peers} --only flink")
    chosen = [q for q in QUESTIONS if not names or q.name in names]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sql, java = ([q for q in chosen if q.in_java is in_java] for in_java in (False, True))
        if sql:
            answer(sql, folder, [str(python), str(Path(__file__).with_name("flink_program.py"))])
        if java:
            answer(java, folder, program(python, folder))


def program(python: Path, folder: Path) -> list[str]:
    """Compile the programs and return the command that runs them."""
    asked = "import pyflink, importlib.metadata as m; print(pyflink.__path__[0]); print(m.version('apache-flink'))"
    home, version = subprocess.check_output([str(python), "-c", asked], text=True).split()
    jars, classes = f"{home}/lib/*", folder / "classes"
    sources = [str(path) for path in sorted(JAVA.glob("*.java"))]
    subprocess.check_call(["javac", "-nowarn", "-cp", jars, "-d", str(classes), *sources])
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time")]
    return ["java", *opened, f"-Dflink.version={version}", "-cp", f"{classes}:{jars}", "Asked"]


def answer(questions: list[Question], folder: Path, command: list[str]) -> None:
    """Ask, and keep the answers as they come."""
    named = {question.name: question for question in questions}
    listed = folder / "questions.json"
    listed.write_text(json.dumps([asked(question, folder) for question in questions]), encoding="utf-8")
    with subprocess.Popen([*command, str(listed)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for text in running.stdout:
            if text.startswith("{"):
                found = json.loads(text)
                keep(named[found["name"]], found)
    if running.wait(_LIMIT_SECONDS):
        sys.exit("Flink failed: its message is above")


def keep(question: Question, found: dict[str, object]) -> None:
    """Write an answer beside what was asked."""
    about = {
        "flink": found["flink"],
        "stream": question.stream,
        "seed": question.seed,
        "input": checksum(STREAMS[question.stream](question.seed)),
        "asked": question.words(),
        "settings": dict(question.settings),
    }
    rows = [str(row) for row in found["rows"]]  # type: ignore[attr-defined]
    canonical.write(question.name, about, rows)
    sys.stdout.write(f"{question.name}: {len(rows)} rows\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
