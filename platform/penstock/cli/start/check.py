"""`penstock check job.py --against URI`: a table of verdicts by state, before the job is started from a snapshot.

With `--backfill` instead: which of its operators a backfill accepts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from penstock.api.job_file import planned
from penstock.cli.options import JsonOption, SettingsOption, print_json, say
from penstock.cli.silence import reading
from penstock.cli.start.backfill import (
    CutOverOption,
    HistoryOption,
    OffsetsOption,
    SparseOption,
    UntilOption,
    parse_cut_over,
    parse_tables,
    parse_until,
)
from penstock.cli.start.run import parse_overrides
from penstock.cli.terminal import terminal
from penstock.core.errors import UsageError
from penstock.core.state_names import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.backfill.histories import TableHistory
    from penstock.checkpoint.manifest_log import Manifest
    from penstock.graph.job_graph import JobGraph
    from penstock.graph.state_check import StateVerdict

    #: (end of histories, start of sources), the tables.
    _Tables = tuple[tuple[dict[str, Any], dict[str, Any]], tuple[TableHistory, ...]]

#: Advice for a changed job; the verdicts show beforehand whether it will work.
_SAVEPOINT = (
    "start with --from a savepoint: `penstock stop JOB` makes one of a running job,"
    " `penstock state repartition URI NEW` of a checkpoint; the verdicts apply to that start"
)
_STOPPED = "the job was stopped with a savepoint: start with --from {uri}; the verdicts apply to that start"


def check(
    job: Annotated[Path, typer.Argument(metavar="job.py", help="Python file that builds and executes a job.")],
    *,
    against: Annotated[str | None, typer.Option(help="Folder of a savepoint, or CHECKPOINT_ROOT/JOB.")] = None,
    backfill: Annotated[bool, typer.Option("--backfill", help="Check the job for `penstock backfill`.")] = False,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="UID", help="With --backfill: accept this operator.")
    ] = None,
    history: HistoryOption = None,
    offsets: OffsetsOption = None,
    sparse: SparseOption = None,
    cut_over: CutOverOption = None,
    until: UntilOption = "latest",
    parallelism: Annotated[int | None, typer.Option(help="Overrides the job's parallelism.")] = None,
    allow_non_restored_state: Annotated[
        list[str] | None, typer.Option(metavar="UID[/STATE]", help="State that may be dropped.")
    ] = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether a snapshot's state fits a job.

    Each state is same, migrates, new, dropped or blocked; exit code 1 if one is blocked.

    A checkpoint also needs an unchanged job. With --backfill: whether its operators give the same results in a backfill
    as live; exit code 1 if one does not and is not accepted. With --history also: whether the tables fit, and where the
    sources take over.
    """
    if (against is None) != backfill:
        raise UsageError("check needs either --against URI or --backfill", hint="pass one of them")
    if against is None:
        graph = planned(job, parse_overrides(settings or []), "")
        bounds = (parse_until(until), parse_cut_over(cut_over))
        _check_backfill(graph, accept or [], (bounds, parse_tables(history, offsets, sparse)), as_json=json)
        return
    from penstock.graph.state_check import check_states
    from penstock.snapshots.access.declared import with_states
    from penstock.snapshots.access.opening import open_snapshot

    with reading(against):
        snapshot = open_snapshot(against)
    overrides = parse_overrides(settings or [], parallelism)
    graph = with_states(planned(job, overrides, snapshot.manifest.job_name))
    verdicts = check_states(
        graph,
        snapshot.manifest.subtasks,
        pending=snapshot.manifest.pending,
        allow_non_restored=tuple(allow_non_restored_state or ()),
        known=snapshot.manifest.operators,
    )
    blocked = sum(verdict.verdict == "blocked" for verdict in verdicts)
    savepoint = _needs_savepoint(graph, snapshot.manifest, allow_non_restored_state)
    groups = {"snapshot": snapshot.manifest.key_groups, "job": graph.settings.key_groups}
    if json:
        states = [msgspec.to_builtins(verdict) for verdict in verdicts]
        head = {"job": graph.name, "snapshot": snapshot.uri, "key_groups": groups}
        print_json({**head, "ok": not blocked, "needs_savepoint": savepoint, "states": states})
    else:
        _print_verdicts(verdicts)
        if groups["job"] != groups["snapshot"]:
            say(f"key groups: {groups['snapshot']} in the snapshot, {groups['job']} in the job: redistributed at start")
        known = f"checkpoint {snapshot.manifest.checkpoint_id}, " if snapshot.manifest.kind == "checkpoint" else ""
        say(f"{blocked} blocked" if blocked else f"the state of {known}{snapshot.uri} fits {graph.name}")
        if savepoint:
            uri = snapshot.manifest.savepoint_uri
            say(f"{savepoint}\n    {_STOPPED.format(uri=uri) if uri else _SAVEPOINT}")
    if blocked:
        raise typer.Exit(1)


def _print_verdicts(verdicts: Sequence[StateVerdict]) -> None:
    table = Table("uid", "state", "verdict", "", box=None)
    for row in verdicts:
        table.add_row(row.uid, shown_name(row.state), row.verdict, "see below" if row.way_out else row.reason)
    terminal().print(table)
    blocked: dict[tuple[str, str, str], list[str]] = {}
    for row in verdicts:
        if row.way_out:
            blocked.setdefault((row.where, row.reason, row.way_out), []).append(row.title)
    for (where, reason, way_out), places in blocked.items():
        say(f"{', '.join(places)}{f' ({where})' if where else ''}: {reason}\n    {way_out}")


def _check_backfill(graph: JobGraph, accept: list[str], tables: _Tables, *, as_json: bool) -> None:
    from penstock.backfill.qualify import findings

    found = findings(graph, accept)
    refused = sum(not finding.accepted for finding in found)
    stitched = _cut_over_positions(graph, tables)
    if as_json:
        report = {"findings": [msgspec.to_builtins(f) for f in found], "tables": stitched}
        print_json({"job": graph.name, "ok": not refused, **report})
    else:
        for finding in found:
            way = "accepted" if finding.accepted else f"--accept {finding.uid}" if finding.acceptable else "refused"
            say(f"{finding.uid} ({finding.kind}): {finding.reason} [{way}]")
        for uid, splits in stitched.items():
            for split, at in splits.items():
                said = f"offsets {at['from']} to {at['to'] - 1} from the table, " if "from" in at else ""
                say(f"{uid}: {split}: {said}the source continues at {at['to']}")
        say(f"{refused} refused" if refused else f"{graph.name} can be backfilled")
    if refused:
        raise typer.Exit(1)


def _cut_over_positions(graph: JobGraph, given: _Tables) -> dict[str, dict[str, dict[str, int]]]:
    """Return the ranges of the sources' tables and where sources take over: uid -> split id -> positions.

    Raises:
        UsageError: a table does not fit, or leaves a gap.
    """
    (until, cut_over), tables = given
    if not tables and not cut_over:
        return {}
    from penstock.backfill.histories import HistoryBounds, histories

    found = histories(graph, HistoryBounds(until=until, cut_over=cut_over, piece_rows=1 << 40), tables)
    named = {table.uid for table in tables}
    report: dict[str, dict[str, dict[str, int]]] = {}
    for vertex in graph.vertices:
        uid = vertex.operators[0].uid
        if vertex.is_source and uid in named:
            history = found[vertex.id]
            report[uid] = {s.rest.id: {"to": s.begin} for s in history.splits}
            for split, (low, high) in history.tables.items():
                report[uid][split] = {"from": low, "to": high}
    return report


def _needs_savepoint(graph: JobGraph, manifest: Manifest, names: list[str] | None) -> str:
    """Return why the job can continue only from a savepoint although its states may fit; empty if it need not."""
    if manifest.kind == "savepoint":
        return ""
    if changed := manifest.change_of(graph.fingerprint):
        return changed
    return "state can be dropped only at a start from a savepoint, and this is a checkpoint" if names else ""
