"""State of running jobs, asked for by users: one key, what there is and how much, the hottest keys.

Called by `penstock.rest.live`. The JobManager itself knows no columns: the first subtask of an operator is asked, types
and hashes the key, and answers, or says whose the key is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.graph.validate import near
from penstock.jobmanager.questions import Questions, Worker
from penstock.jobmanager.views import JobDetail, SubtaskView, VertexView
from penstock.rpc.worker_commands import AskSubtask

#: Rows of one key that are returned at most.
MOST_ROWS = 10_000
#: Hot keys of an operator that are shown.
_HOTTEST = 20


@dataclass(frozen=True, slots=True)
class StateKey:
    """What is asked for: a state of an operator, the parts of a key as texts, and how many of its rows."""

    uid: str
    state: str
    key: tuple[str, ...]
    most: int = 1000


async def value_of(job: JobDetail, asked: StateKey, questions: Questions) -> dict[str, Any]:
    """Return the live rows of one key with their columns.

    Raises:
        NotFoundError: there is no such operator, state, or nothing under the key. UsageError: the job does not run, or
        the key does not fit. PenstockError: no answer came in time.
    """
    if not asked.key:
        raise UsageError("no key is given", hint="add ?key=..., one for each key column, or a JSON array or object")
    if not 0 < asked.most <= MOST_ROWS:
        raise UsageError(f"limit {asked.most} is not between 1 and {MOST_ROWS}", hint="ask for fewer rows")
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
        msg = f"the key {found['key']} has just moved to another subtask: the job is being rescaled"
        raise PenstockError(msg, hint="ask again")
    if not found["rows"]:
        msg = f"state {asked.state!r} of {asked.uid!r} holds nothing for the key {found['key']}"
        raise NotFoundError(msg, hint="no row of that key has come, or its state was cleared, closed or expired")
    head = {"uid": asked.uid, "name": asked.state, "consistency": "read-uncommitted"}
    return {**head, **found}


async def states_of(job: JobDetail, questions: Questions) -> dict[str, Any]:
    """Return every keyed state of a running job with its rows and bytes in memory, by subtask and so by key groups.

    Raises:
        UsageError: the job does not run. PenstockError: no answer came in time.
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
            own = ("subtask", "key-groups", "rows", "bytes", "largest-groups")
            known["subtasks"].append({name: part[name] for name in own})
    return {"states": [state for _, state in sorted(merged.items())]}


async def hot_keys_of(job: JobDetail, questions: Questions) -> dict[str, Any]:
    """Return the hottest keys of every keyed operator of a running job, as far as samples of its rows say.

    Raises:
        UsageError: the job does not run. PenstockError: no answer came in time.
    """
    merged: dict[str, list[dict[str, Any]]] = {}
    for answer in await ask_all(job, "hot-keys", questions):
        for part in answer["hot-keys"]:
            merged.setdefault(part["uid"], []).append(part)
    return {"operators": [_hottest(uid, parts) for uid, parts in sorted(merged.items())]}


def _hottest(uid: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge what the subtasks say: a key is of one subtask, and none weighs more than `error` above what is shown."""
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
    """Return what every subtask of a running job answers to `what`.

    Raises:
        UsageError: the job does not run. PenstockError: no answer came in time.
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
    msg = f"job {job.summary.name!r} has no operator of uid {uid!r}"
    raise NotFoundError(msg, hint=near(uid, _uids(job.vertices)))


def _uids(vertices: Iterable[VertexView]) -> list[str]:
    return [operator.uid for vertex in vertices for operator in vertex.operators]


def _running(job: JobDetail, vertex: VertexView) -> tuple[SubtaskView, ...]:
    """Return the subtasks of a vertex if all of them run."""
    state = job.summary.state
    if state != "RUNNING" or any(subtask.state != "RUNNING" for subtask in vertex.subtasks):
        shown = state if state != "RUNNING" else f"{state}, but not all of its subtasks are"
        msg = f"job {job.summary.name!r} ({job.summary.job_id}) is {shown}"
        raise UsageError(msg, hint="only a running job has live state; `penstock state read` shows its snapshots")
    return vertex.subtasks
