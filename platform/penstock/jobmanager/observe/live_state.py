"""Queries of the live state of running jobs: one key, a page of keys, all states with sizes, the hottest keys.

Called by `penstock.rest.jobs.live_state_requests`. The JobManager knows no columns. It asks the operator's first
subtask, which types and hashes the key, and answers or names the subtask that owns the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.core.keygroup import HASH_MAX, HASH_MIN, first_hash_of, key_group_of, key_groups_of, subtask_of
from penstock.core.names import near
from penstock.jobmanager.cluster.worker_queries import Questions, Worker
from penstock.jobmanager.messages.views import JobDetail, SubtaskView, VertexView
from penstock.rpc.worker_commands import AskSubtask

#: Upper limit of returned rows of one key.
MOST_ROWS = 10_000
#: Upper limit of returned keys of a state.
MOST_KEYS = 1000
#: Number of hot keys shown per operator.
_HOTTEST = 20


@dataclass(frozen=True, slots=True)
class StateKey:
    """A query for rows of one key: state, key parts as texts, row limit."""

    uid: str
    state: str
    key: tuple[str, ...]
    most: int = 1000


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A query for keys of a state by hash: one key group or all, after a given hash."""

    uid: str
    state: str
    key_group: int | None = None
    after: int | None = None
    most: int = 100


async def keys_of(job: JobDetail, asked: KeyPage, questions: Questions) -> dict[str, Any]:
    """Return keys in memory with their row counts, and the hash to continue after (a text; None at the end).

    Raises:
        NotFoundError: there is no such operator or state. UsageError: the job is not running, or a parameter is
        out of range. PenstockError: no answer arrived in time.
    """
    vertex = _vertex_of(job, asked.uid)
    groups = job.settings.key_groups
    low, high = _hashes(asked, groups)
    places, found, going = _running(job, vertex), list[dict[str, Any]](), low
    while going <= high and len(found) < asked.most:
        subtask = subtask_of(key_group_of(going, groups), vertex.parallelism, groups)
        question = AskSubtask(
            job_id=job.summary.job_id,
            request_id="",
            vertex_id=vertex.id,
            subtask=subtask,
            what="keys",
            uid=asked.uid,
            state=asked.state,
            between=(going, high),
            most=asked.most - len(found),
        )
        place = places[subtask]
        answer = await questions.ask(Worker(place.taskmanager_id, place.worker_id), question)
        found += [{**key, "subtask": subtask} for key in answer["keys"]]
        behind = first_hash_of(key_groups_of(subtask, vertex.parallelism, groups).stop, groups) - 1
        going = 1 + (behind if answer["next"] is None else answer["next"])
    following = str(going - 1) if going <= high else None
    return {"uid": asked.uid, "name": asked.state, "keys": found, "next": following}


def _hashes(asked: KeyPage, groups: int) -> tuple[int, int]:
    """Return the first and the last hash of the queried range."""
    if not 0 < asked.most <= MOST_KEYS:
        raise UsageError(f"limit {asked.most} is not between 1 and {MOST_KEYS}", hint="choose a limit in that range")
    low, high = HASH_MIN, HASH_MAX
    if asked.key_group is not None:
        if not 0 <= asked.key_group < groups:
            msg = f"there is no key group {asked.key_group}"
            raise UsageError(msg, hint=f"this job has key groups 0 to {groups - 1}")
        low, high = first_hash_of(asked.key_group, groups), first_hash_of(asked.key_group + 1, groups) - 1
    if asked.after is not None:
        if not low <= asked.after <= high:
            raise UsageError(f"after={asked.after} is no hash in this range", hint="pass `next` of the previous page")
        low = asked.after + 1
    return low, high


async def value_of(job: JobDetail, asked: StateKey, questions: Questions) -> dict[str, Any]:
    """Return the live rows of one key with their columns.

    Raises:
        NotFoundError: there is no such operator, state, or no rows of the key. UsageError: the job is not running, or
        the key does not fit. PenstockError: no answer arrived in time.
    """
    if not asked.key:
        raise UsageError("the key is missing", hint="add ?key=..., one for each key column, or a JSON array or object")
    if not 0 < asked.most <= MOST_ROWS:
        raise UsageError(f"limit {asked.most} is not between 1 and {MOST_ROWS}", hint="choose a limit in that range")
    vertex = _vertex_of(job, asked.uid)
    subtask = 0
    for _ in range(2):
        place = _running(job, vertex)[subtask]
        question = AskSubtask(
            job_id=job.summary.job_id,
            request_id="",
            vertex_id=vertex.id,
            subtask=subtask,
            what="state",
            uid=asked.uid,
            state=asked.state,
            key=asked.key,
            most=asked.most,
        )
        found = await questions.ask(Worker(place.taskmanager_id, place.worker_id), question)
        if "rows" in found:
            break
        subtask = int(found["subtask"])
    if "rows" not in found:
        msg = f"the key {found['key']} has just moved to another subtask in a rescale"
        raise PenstockError(msg, hint="try again")
    if not found["rows"]:
        msg = f"state {asked.state!r} of {asked.uid!r} has no rows of the key {found['key']}"
        raise NotFoundError(msg, hint="no row of that key has arrived, or its state was cleared, closed or expired")
    head = {"uid": asked.uid, "name": asked.state, "consistency": "read-uncommitted"}
    return {**head, **found}


async def states_of(job: JobDetail, questions: Questions) -> dict[str, Any]:
    """Return every keyed state of a running job with its rows and bytes in memory, by subtask and key group.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in await ask_all(job, "states", questions):
        for part in answer["states"]:
            known = merged.setdefault(
                (part["uid"], part["name"]),
                {**{n: part[n] for n in ("uid", "name", "key", "schema")}, "rows": 0, "bytes": 0, "subtasks": []},
            )
            known["rows"] += part["rows"]
            known["bytes"] += part["bytes"]
            own = ("subtask", "key-groups", "rows", "bytes", "largest-groups", "rows-by-group")
            known["subtasks"].append({name: part[name] for name in own})
    return {"states": [state for _, state in sorted(merged.items())]}


async def hot_keys_of(job: JobDetail, questions: Questions) -> dict[str, Any]:
    """Return the hottest keys of every keyed operator of a running job, estimated from samples of its rows.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    merged: dict[str, list[dict[str, Any]]] = {}
    for answer in await ask_all(job, "hot-keys", questions):
        for part in answer["hot-keys"]:
            merged.setdefault(part["uid"], []).append(part)
    return {"operators": [_hottest(uid, parts) for uid, parts in sorted(merged.items())]}


def _hottest(uid: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the subtasks' answers: each key belongs to one subtask, and counts are at most `error` too low."""
    rows = sum(part["rows"] for part in parts)
    keys = [
        {**key, "share": key["rows"] / rows, "subtask": part["subtask"]}
        for part in parts
        for key in part["keys"]
        if rows
    ]
    keys.sort(key=lambda key: (-key["rows"], str(key["key"])))
    error = max(part["error"] for part in parts)
    return {"uid": uid, "rows": rows, "error": error, "keys": keys[:_HOTTEST]}


async def ask_all(job: JobDetail, what: str, questions: Questions) -> list[dict[str, Any]]:
    """Return the answers of all subtasks of a running job to the query `what`.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    asking = [
        questions.ask(
            Worker(place.taskmanager_id, place.worker_id),
            AskSubtask(job_id=job.summary.job_id, request_id="", vertex_id=vertex.id, subtask=place.subtask, what=what),
        )
        for vertex in job.vertices
        for place in _running(job, vertex)
    ]
    found = await asyncio.gather(*asking, return_exceptions=True)
    for problem in found:
        if isinstance(problem, BaseException):
            raise problem
    return [answer for answer in found if isinstance(answer, dict)]


def _vertex_of(job: JobDetail, uid: str) -> VertexView:
    for vertex in job.vertices:
        if any(operator.uid == uid for operator in vertex.operators):
            return vertex
    msg = f"job {job.summary.name!r} has no operator with uid {uid!r}"
    raise NotFoundError(msg, hint=near(uid, _uids(job.vertices)))


def _uids(vertices: Iterable[VertexView]) -> list[str]:
    return [operator.uid for vertex in vertices for operator in vertex.operators]


def _running(job: JobDetail, vertex: VertexView) -> tuple[SubtaskView, ...]:
    """Return the subtasks of a vertex; raise UsageError unless all of them run."""
    state = job.summary.state
    if state != "RUNNING" or any(subtask.state != "RUNNING" for subtask in vertex.subtasks):
        shown = state if state != "RUNNING" else f"{state}, but some of its subtasks are not"
        msg = f"job {job.summary.name!r} ({job.summary.job_id}) is {shown}"
        raise UsageError(msg, hint="only a running job has live state; `penstock state read` shows its snapshots")
    return vertex.subtasks
