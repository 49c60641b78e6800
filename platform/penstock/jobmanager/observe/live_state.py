"""State of running jobs, asked for by users: one key, which keys, what there is and how much, the hottest keys.

Called by `penstock.rest.jobs.live_state_requests`. The JobManager itself knows no columns: the first subtask of an
operator is asked, types and hashes the key, and answers, or says whose the key is.
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

#: Rows of one key that are returned at most.
MOST_ROWS = 10_000
#: Keys of a state that are returned at most.
MOST_KEYS = 1000
#: Hot keys of an operator that are shown.
_HOTTEST = 20


@dataclass(frozen=True, slots=True)
class StateKey:
    """What is asked for: a state of an operator, the parts of a key as texts, and how many of its rows."""

    uid: str
    state: str
    key: tuple[str, ...]
    most: int = 1000


@dataclass(frozen=True, slots=True)
class KeyPage:
    """What is asked for: keys of a state in the order of their hashes, of one key group or all, behind a hash."""

    uid: str
    state: str
    key_group: int | None = None
    after: int | None = None
    most: int = 100


async def keys_of(job: JobDetail, asked: KeyPage, questions: Questions) -> dict[str, Any]:
    """Return keys that have rows in memory, with how many, and the hash behind which to go on (a text; None: no more).

    Raises:
        NotFoundError: there is no such operator or state. UsageError: the job does not run, or what is asked for is
        out of range. PenstockError: no answer came in time.
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
    """Return the first and the last hash of what is asked for."""
    if not 0 < asked.most <= MOST_KEYS:
        raise UsageError(f"limit {asked.most} is not between 1 and {MOST_KEYS}", hint="ask for fewer keys")
    low, high = HASH_MIN, HASH_MAX
    if asked.key_group is not None:
        if not 0 <= asked.key_group < groups:
            msg = f"there is no key group {asked.key_group}"
            raise UsageError(msg, hint=f"this job has key groups 0 to {groups - 1}")
        low, high = first_hash_of(asked.key_group, groups), first_hash_of(asked.key_group + 1, groups) - 1
    if asked.after is not None:
        if not low <= asked.after <= high:
            raise UsageError(f"after={asked.after} is no hash of these keys", hint="give `next` of the keys before")
        low = asked.after + 1
    return low, high


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
            own = ("subtask", "key-groups", "rows", "bytes", "largest-groups", "rows-by-group")
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
