"""Rows in one form, whichever engine they are from, and the files that hold Flink's."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "answers"
_EPOCH = dt.datetime(1970, 1, 1)
_DIGITS = 9


def value(of: Any) -> Any:
    """Return a value as both engines are compared by: times in milliseconds, floats to nine digits."""
    if isinstance(of, dt.datetime):
        plain = of.astimezone(dt.UTC).replace(tzinfo=None) if of.tzinfo else of
        return (plain - _EPOCH) // dt.timedelta(milliseconds=1)
    if isinstance(of, float):
        return float(f"{of:.{_DIGITS}g}") + 0.0
    return of


def line(row: Iterable[Any]) -> str:
    """Return a row as the line of its answer."""
    return json.dumps([value(of) for of in row], ensure_ascii=False, separators=(",", ":"))


def write(name: str, about: dict[str, Any], rows: Iterable[str]) -> None:
    """Keep Flink's answer to a question: what was asked, then the rows in order."""
    FOLDER.mkdir(exist_ok=True)
    head = json.dumps(about, ensure_ascii=False)
    (FOLDER / f"{name}.jsonl").write_text("\n".join([head, *sorted(rows), ""]), encoding="utf-8")


def read(name: str) -> tuple[dict[str, Any], list[str]]:
    """Return what was asked, and Flink's rows."""
    head, *rows = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(head), rows
