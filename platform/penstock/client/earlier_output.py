"""Detects output of earlier runs when a job starts without a checkpoint; called by `client.executors`.

A job that starts over writes its output again. Files published by an earlier run remain, so a reader of the folder gets
these rows twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.graph.job_graph import JobGraph


def earlier_output(graph: JobGraph, *, fresh: bool) -> list[str]:
    """Return a warning for each local sink folder that contains files although the job starts without a checkpoint.

    `fresh` means that the user starts over. Otherwise only a local checkpoint root is checked. Hidden files do not
    count.
    """
    root = graph.settings.checkpoint_root
    if not fresh and ("://" in root or (Path(root) / graph.name).exists()):
        return []
    return [
        f"sink {uid}: {folder} holds {count:,} {'file' if count == 1 else 'files'} of earlier runs, but the job starts"
        " over: rows that it writes again are duplicates; remove the files or use another folder"
        for uid, folder in _folders(graph)
        if (count := _files(folder))
    ]


def _folders(graph: JobGraph) -> list[tuple[str, Path]]:
    """Return uid and folder of each sink that writes to a local folder."""
    from penstock.connector.sink import SinkSpec  # when a job starts over, not at each start of the command line

    sinks = [operator for vertex in graph.vertices for operator in vertex.operators if operator.kind == "sink"]
    places = [(operator.uid, msgspec.convert(operator.config["sink"], SinkSpec).place) for operator in sinks]
    return [(uid, Path(place)) for uid, place in places if place.startswith("/")]


def _files(folder: Path) -> int:
    try:
        return sum(not entry.name.startswith(".") for entry in folder.iterdir())
    except OSError:  # the folder does not exist yet, or only the workers may read it
        return 0
