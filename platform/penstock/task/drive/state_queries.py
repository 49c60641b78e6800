"""Queries of a running subtask: one key, a list of keys, state sizes, hot keys, watermarks by split.

`OpenQueries` is called by `task.drive.runtime`; answers are made in the subtask's thread between two elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import NotFoundError, PenstockError, UsageError, did_you_mean
from penstock.core.evolution import ENTRY_IDS, KEY_IDS, field_id
from penstock.core.keygroup import HashRange, key_group_of, key_groups_of, subtask_of
from penstock.core.state_names import shown_name, stored_name
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.kernels.keys.key_text import json_value, parse_key
from penstock.rpc.messages import SubtaskAnswer
from penstock.state.keys.key_index import HASH, ROWS
from penstock.state.log.segment_columns import DELETED, KEY_HASH, SEQ
from penstock.state.store import bytes_of
from penstock.task.chain.failure import describe
from penstock.task.drive.subtask import MailboxFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.eventtime.split_watermarks import SplitProgress
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.rpc.messages import AskSubtask
    from penstock.state.store import KeyedState, StateTable
    from penstock.task.chain.chain import Chain
    from penstock.task.drive.subtask import Subtask

#: Number of splits that an answer names, those with the lowest watermarks.
MOST_SPLITS = 20


def watermarks_of(deployment: TaskDeployment, chain: Chain) -> list[dict[str, Any]]:
    """Return the watermark (ms) of each operator that makes one, and its splits with the lowest ones, lowest first.

    A split that is neither idle nor finished holds the watermark back; watermarks are None before the first one.
    """
    found = []
    for link in chain.links:
        split_watermarks = link.capabilities.split_watermarks
        if split_watermarks is not None and (marks := split_watermarks()) is not None:
            splits = sorted(marks.progress, key=lambda s: (s.finished, s.idle, s.watermark, s.split_id))
            found.append(
                {
                    "uid": link.spec.uid,
                    "subtask": deployment.execution.subtask,
                    "watermark": _ms(marks.combined),
                    "idle": marks.idle,
                    "count": len(splits),
                    "splits": [_split(split) for split in splits[:MOST_SPLITS]],
                }
            )
    return found


def _split(split: SplitProgress) -> dict[str, Any]:
    return {
        "id": split.split_id,
        "watermark": _ms(split.watermark),
        "idle": split.idle,
        "finished": split.finished,
        "standing-ms": int(split.stalled_ms),
        "quiet-ms": int(split.quiet_ms),
    }


def _ms(watermark: int) -> int | None:
    return None if watermark == MIN_TIMESTAMP else watermark // 1000


#: Columns that only locate a row in the files.
_LOCATION_COLUMNS = (KEY_HASH, DELETED, SEQ)
#: Number of key groups that a listing names, the largest ones.
_LARGEST = 5
#: Maximum number of key-group figures of a state, over all its subtasks: beyond it, groups share a figure.
_FIGURES = 1024
#: Waiting queries of one subtask; further ones are rejected.
MOST_WAITING = 64
#: Answer to a query for a subtask that does not run here, or no longer.
NOT_RUNNING = "the subtask does not run"
_BUSY = f"{MOST_WAITING} queries wait for the subtask already; repeat the query later"


class OpenQueries:
    """Queries in the mailboxes of one job's subtasks, limited so that the job's mails find room."""

    def __init__(self, clock: Clock, send: Callable[[SubtaskAnswer], None]) -> None:
        """Start without queries; `send` takes answers, from any thread."""
        self._clock, self._send = clock, send
        self._waiting: dict[str, set[object]] = {}

    def ask(self, subtask: Subtask, query: AskSubtask) -> None:
        """Queue a query in the subtask, or answer at once why it is rejected; called by one thread.

        A query that is processed only after `wait_ms` is not answered, because its client no longer waits.
        """
        waiting = self._waiting.setdefault(subtask.metric_name, set())
        if len(waiting) >= MOST_WAITING:
            self.refuse(query, _BUSY)
            return
        mark, latest = object(), self._clock.monotonic_ms() + query.wait_ms

        def look(chain: Chain, stores: Iterable[KeyedState]) -> None:
            waiting.discard(mark)
            if self._clock.monotonic_ms() <= latest:
                answer(query, (subtask.deployment, self._send), chain, stores)

        waiting.add(mark)
        try:
            problem = "" if subtask.run_in_mailbox(look) else NOT_RUNNING
        except MailboxFullError as error:
            problem = str(error)
        if problem:
            waiting.discard(mark)
            self.refuse(query, problem)

    def refuse(self, query: AskSubtask, problem: str) -> None:
        """Answer with the reason why a query is rejected."""
        self._send(SubtaskAnswer(job_id=query.job_id, request_id=query.request_id, error=problem))


def answer(
    query: AskSubtask,
    of: tuple[TaskDeployment, Callable[[SubtaskAnswer], None]],
    chain: Chain,
    stores: Iterable[KeyedState],
) -> None:
    """Answer one query to the subtask `of` = (its deployment, the receiver of answers).

    An error in the query is returned as its answer and does not fail the subtask.
    """
    deployment, send = of
    found: dict[str, Any] = {}
    error = kind = ""
    try:
        if query.what == "state":
            found = _rows(query, deployment, stores)
        elif query.what == "keys":
            found = _keys(query, deployment, stores)
        elif query.what == "states":
            found = {"states": _listing(deployment, stores)}
        elif query.what == "watermarks":
            found = {"watermarks": watermarks_of(deployment, chain)}
        else:
            found = {"hot-keys": _hot_keys(deployment, chain)}
    except PenstockError as problem:
        error, kind = str(problem), _kind(problem)
    except Exception as problem:  # noqa: BLE001 - a query must not end the subtask
        error = describe(problem)[0]
    send(SubtaskAnswer(job_id=query.job_id, request_id=query.request_id, answer=found, error=error, kind=kind))


def _kind(problem: PenstockError) -> str:
    if isinstance(problem, NotFoundError):
        return "not-found"
    return "usage" if isinstance(problem, UsageError) else ""


def _rows(query: AskSubtask, deployment: TaskDeployment, stores: Iterable[KeyedState]) -> dict[str, Any]:
    """Return the rows of one key, or the subtask that has them."""
    table = _table(query, stores)
    schema = table.source.spec.segment_schema
    keyed = pa.schema([pa.field(f.name, f.type) for f in schema if field_id(f) in KEY_IDS])
    key = parse_key(query.key, keyed)
    columns = key_columns(key, tuple(keyed.names))
    hashes = hash_key_columns(columns, 1)
    groups = deployment.settings.key_groups
    group = key_group_of(int(hashes[0]), groups)
    owner = subtask_of(group, deployment.parallelism, groups)
    location = {"key": _json_rows(pa.table(key))[0], "key-group": group, "subtask": owner}
    if owner != deployment.execution.subtask:
        return location
    rows = table.look_up(columns, hashes, query.most + 1)
    shown = [field for field in schema if field.name not in _LOCATION_COLUMNS and field.name not in keyed.names]
    return {
        **location,
        "schema": [{"name": field.name, "type": str(field.type)} for field in shown],
        "rows": _json_rows(rows.select([field.name for field in shown]).slice(0, query.most)),
        "more": rows.num_rows > query.most,
    }


def _keys(query: AskSubtask, deployment: TaskDeployment, stores: Iterable[KeyedState]) -> dict[str, Any]:
    """Return the first keys with rows in memory in the requested hash range; with the last hash if there are more."""
    counts, groups = _table(query, stores).counts(), deployment.settings.key_groups
    page, more = counts.page(HashRange(*query.between), query.most)
    hashes, rows = page[HASH].to_pylist(), page[ROWS].to_pylist()
    keys = _json_rows(page.drop_columns([HASH, ROWS]))
    found = [
        {"key": key, "key-group": key_group_of(key_hash, groups), "rows": count}
        for key, key_hash, count in zip(keys, hashes, rows, strict=True)
    ]
    return {"keys": found, "next": hashes[-1] if more else None}


def _table(query: AskSubtask, stores: Iterable[KeyedState]) -> StateTable:
    store = next((store for store in stores if store.uid == query.uid), None)
    if store is None:
        msg = f"operator {query.uid!r} keeps no state by key"
        raise NotFoundError(msg, hint="`penstock show JOB --state` lists what there is")
    table = store.tables.get(stored_name(query.state, store.tables))
    if table is None:
        msg = f"{query.uid!r} has no state {query.state!r}"
        raise NotFoundError(msg, hint=did_you_mean(query.state, [shown_name(name) for name in store.tables]))
    return table


def _listing(deployment: TaskDeployment, stores: Iterable[KeyedState]) -> list[dict[str, Any]]:
    """Return every state with its columns, rows and bytes in memory, and its largest key groups."""
    total = deployment.settings.key_groups
    groups = key_groups_of(deployment.execution.subtask, deployment.parallelism, total)
    found = []
    for store in stores:
        for name, table in store.tables.items():
            counts, schema = table.counts(), table.source.spec.segment_schema
            by_group = counts.by_group(total)
            largest = sorted(by_group.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST]
            step = -(-total // _FIGURES)
            figures = [0] * -(-len(groups) // step)
            for group, rows in by_group.items():
                figures[(group - groups.start) // step] += rows
            found.append(
                {
                    "uid": store.uid,
                    "name": name,
                    "key": [f"{f.name} {f.type}" for f in schema if field_id(f) in KEY_IDS],
                    "schema": [{"name": f.name, "type": str(f.type)} for f in schema if field_id(f) >= ENTRY_IDS.start],
                    "subtask": deployment.execution.subtask,
                    "key-groups": [groups.start, groups.stop - 1],
                    "rows": counts.total,
                    "bytes": bytes_of(table),
                    "largest-groups": [{"key-group": group, "rows": rows} for group, rows in largest],
                    "rows-by-group": {"groups": step, "rows": figures},
                }
            )
    return found


def _hot_keys(deployment: TaskDeployment, chain: Chain) -> list[dict[str, Any]]:
    """Return the hottest keys of every keyed operator of the chain."""
    return [
        {"uid": link.spec.uid, "subtask": deployment.execution.subtask, **link.hot_keys.hottest()}
        for link in chain.links
        if link.hot_keys is not None
    ]


def _json_rows(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: json_value(value) for name, value in row.items()} for row in table.to_pylist()]
