"""Warnings of a start: earlier output, output that may repeat rows, input that is not read, a job of the same name.

Used by `client.executors` at each submit. Only local folders are looked at.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.handle import TERMINAL
from penstock.core.counts import counted
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import JobGraph

if TYPE_CHECKING:
    from penstock.client.rest_client import RestClient
    from penstock.connector.sink import SinkSpec
    from penstock.connector.source import ListedOnceFactory, SourceSpec, SourceSplit


def may_resume(graph: JobGraph) -> bool:
    """Return whether the job's folder of checkpoints exists, or is in an object store, which is not asked."""
    root = graph.settings.checkpoint_root
    return "://" in root or (Path(root) / graph.name).exists()


def earlier_output(graph: JobGraph, *, fresh: bool) -> list[str]:
    """Return a warning for each local sink folder that contains files although the job starts without a checkpoint.

    `fresh` means that the user starts over. Otherwise only a local checkpoint root is checked. Hidden files do not
    count.
    """
    if not fresh and may_resume(graph):
        return []
    return [
        f"sink {uid}: {folder} holds {counted(count, 'file')} of earlier runs, but the job starts"
        " over: rows that it writes again are duplicates; remove the files or use another folder"
        for uid, folder in _folders(graph)
        if (count := _files(folder))
    ]


def _folders(graph: JobGraph) -> list[tuple[str, Path]]:
    """Return uid and folder of each sink that writes to a local folder."""
    return [(uid, Path(spec.place)) for uid, spec in _sinks(graph) if spec.place.startswith("/")]


def _sinks(graph: JobGraph) -> list[tuple[str, SinkSpec]]:
    from penstock.connector.sink import SinkSpec  # when a job starts over, not at each start of the command line

    sinks = [operator for vertex in graph.vertices for operator in vertex.operators if operator.kind == "sink"]
    return [(operator.uid, msgspec.convert(operator.config["sink"], SinkSpec)) for operator in sinks]


def _files(folder: Path) -> int:
    try:
        return sum(not entry.name.startswith(".") for entry in folder.iterdir())
    except OSError:  # the folder does not exist yet, or only the workers may read it
        return 0


def repeated_output(graph: JobGraph) -> list[str]:
    """Return a warning if the job has exactly-once sinks, but checkpoints that may count rows again."""
    if graph.settings.checkpoint_mode == "exactly-once":
        return []
    uids = ", ".join(uid for uid, spec in _sinks(graph) if spec.delivery.startswith("exactly-once"))
    text = "with checkpoint_mode='at-least-once', rows may count again in their output after a failure"
    return [f"exactly-once sinks ({uids}): {text}"] if uids else []


def unread_input(graph: JobGraph, *, fresh: bool) -> list[str]:
    """Return a warning for each source with input that is newer than the splits in the job's newest checkpoint.

    Only sources that list their splits once have such input (`SourceSpec.listed_once`).
    """
    root = graph.settings.checkpoint_root
    sources = [] if fresh or "://" in root else _listed_once(graph)
    folder = Path(root) / graph.name
    if not sources or not folder.exists():
        return []
    from penstock.connector.sink import load_factory

    lines = []
    with contextlib.suppress(PenstockError):  # the JobManager reports what is wrong with the checkpoint
        known = _splits_of(str(folder))
        for uid, spec in sources:
            factory: ListedOnceFactory = load_factory(spec.factory)
            if uid in known and (unread := factory.unread(spec, known[uid])):
                way = "--fresh with an empty sink folder reads all input again"
                lines.append(f"source {uid}: {unread}; {way}")
    return lines


def same_name(client: RestClient, graph: JobGraph, job_id: str) -> list[str]:
    """Return a warning for each other running job of that name; `job_id` is the submitted one.

    Its checkpoints have another root, by default a folder below that of its `penstock run`: else the JobManager would
    have refused the job.
    """
    lines = []
    with contextlib.suppress(PenstockError):  # the job is submitted already
        for job in client.jobs():
            if job["name"] == graph.name and job["state"] not in TERMINAL and job["jid"] != job_id:
                theirs, ours = client.checkpoint_root(job["jid"]), graph.settings.checkpoint_root
                lines.append(
                    f"job {graph.name!r} runs twice: as {job['jid']} with checkpoints in {theirs}, and now as {job_id}"
                    f" with checkpoints in {ours}; commands by name act on the newest: cancel one by its id, or give"
                    " it another --name"
                )
    return lines


def _listed_once(graph: JobGraph) -> list[tuple[str, SourceSpec]]:
    from penstock.connector.source import SourceSpec

    first = [(v.operators[0].uid, v.operators[0].config) for v in graph.vertices if v.is_source]
    specs = [(uid, msgspec.convert(config["source"], SourceSpec)) for uid, config in first]
    return [(uid, spec) for uid, spec in specs if spec.listed_once]


def _splits_of(folder: str) -> dict[str, tuple[SourceSplit, ...]]:
    """Return the splits of each source in a job's newest checkpoint."""
    from penstock.connector.source import SourceSplit
    from penstock.operators.sources.source_operator import SPLITS_STATE
    from penstock.snapshots.access.content import states_of
    from penstock.snapshots.access.opening import open_snapshot

    states = [state for state in states_of(open_snapshot(folder).manifest) if state.name == SPLITS_STATE]
    items: dict[str, list[Any]] = {s.uid: [item for _, part in s.operator for item in part.items] for s in states}
    return {uid: msgspec.convert(found, tuple[SourceSplit, ...]) for uid, found in items.items()}
