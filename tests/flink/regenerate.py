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
from tests.flink.question import Question
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
        "sql": question.sql,
        "views": list(question.views),
        "settings": dict(question.settings),
        "time_zone": question.time_zone,
        "versions": question.stream == "versions",
        "bound_ms": question.bound_ms,
        "parallelism": len(files),
        "files": files,
    }


def main(peers: str, *names: str) -> None:
    """Ask the questions named, or all."""
    python = Path(peers) / "venvs/flink/bin/python"
    if not python.exists():
        sys.exit(f"{python} is not there: run python tests/bench/peers/setup.py {peers} --only flink")
    chosen = {q.name: q for q in QUESTIONS if not names or q.name in names}
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "questions.json"
        listed.write_text(json.dumps([asked(q, Path(scratch)) for q in chosen.values()]), encoding="utf-8")
        command = [str(python), str(Path(__file__).with_name("flink_program.py")), str(listed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for text in running.stdout:
                if text.startswith("{"):
                    found = json.loads(text)
                    keep(chosen[found["name"]], found)
        if running.wait(_LIMIT_SECONDS):
            sys.exit("Flink failed: its message is above")


def keep(question: Question, found: dict[str, object]) -> None:
    """Write an answer beside what was asked."""
    about = {
        "flink": found["flink"],
        "stream": question.stream,
        "seed": question.seed,
        "input": checksum(STREAMS[question.stream](question.seed)),
        "sql": [*question.views, question.sql],
        "settings": dict(question.settings),
    }
    rows = [str(row) for row in found["rows"]]  # type: ignore[attr-defined]
    canonical.write(question.name, about, rows)
    sys.stdout.write(f"{question.name}: {len(rows)} rows\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
