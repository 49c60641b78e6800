"""Queries of the live state of running jobs: keys, states with sizes, hot keys, and what holds the watermark back.

Called by `rest.jobs.observation_routes`. The JobManager knows no columns. It asks the operator's first subtask,
which hashes the key, and answers or names the subtask that owns the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.clock import utc_text
from penstock.core.errors import NotFoundError, PenstockError, UsageError, did_you_mean
from penstock.core.keygroup import HASH_MAX, HASH_MIN, first_hash_of, key_group_of, key_groups_of, subtask_of
from penstock.core.slow_calls import slow_call_since_text
from penstock.core.state_names import shown_name
from penstock.jobmanager.cluster.taskmanagers import WorkerAddress, WorkerQueries
from penstock.jobmanager.messages.views import JobDetail, SubtaskView, VertexView
from penstock.rpc.messages import AskSubtask

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


async def keys_of(job: JobDetail, asked: KeyPage, queries: WorkerQueries) -> dict[str, Any]:
    """Return keys in memory with their row counts, and the hash to continue after (a text; None at the end).

    Raises:
        NotFoundError: there is no such operator or state. UsageError: the job is not running, or a parameter is
        out of range. PenstockError: no answer arrived in time.
    """
    vertex = _vertex_of(job, asked.uid)
    groups = job.settings.key_groups
    low, high = _hash_range(asked, groups)
    places, found, next_hash = _running(job, vertex), list[dict[str, Any]](), low
    while next_hash <= high and len(found) < asked.most:
        subtask = subtask_of(key_group_of(next_hash, groups), vertex.parallelism, groups)
        query = AskSubtask(
            job_id=job.summary.job_id,
            request_id="",
            vertex_id=vertex.id,
            subtask=subtask,
            what="keys",
            uid=asked.uid,
            state=asked.state,
            between=(next_hash, high),
            most=asked.most - len(found),
        )
        place = places[subtask]
        answer = await queries.ask(WorkerAddress(place.taskmanager_id, place.worker_id), query)
        found += [{**key, "subtask": subtask} for key in answer["keys"]]
        last_hash = first_hash_of(key_groups_of(subtask, vertex.parallelism, groups).stop, groups) - 1
        next_hash = 1 + (last_hash if answer["next"] is None else answer["next"])
    following = str(next_hash - 1) if next_hash <= high else None
    return {"uid": asked.uid, "name": asked.state, "keys": found, "next": following}


def _hash_range(asked: KeyPage, groups: int) -> tuple[int, int]:
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


async def value_of(job: JobDetail, asked: StateKey, queries: WorkerQueries) -> dict[str, Any]:
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
        query = AskSubtask(
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
        found = await queries.ask(WorkerAddress(place.taskmanager_id, place.worker_id), query)
        if "rows" in found:
            break
        subtask = int(found["subtask"])
    if "rows" not in found:
        msg = f"the key {found['key']} has just moved to another subtask in a rescale"
        raise PenstockError(msg, hint="try again")
    if not found["rows"]:
        msg = f"state {asked.state!r} of {asked.uid!r} has no rows of the key {found['key']}"
        raise NotFoundError(msg, hint="no row of that key has arrived, or its state was cleared, closed or expired")
    head = {"uid": asked.uid, "name": asked.state, "title": shown_name(asked.state)}
    return {**head, "consistency": "read-uncommitted", **found}


async def states_of(job: JobDetail, queries: WorkerQueries) -> dict[str, Any]:
    """Return every keyed state of a running job with its rows and bytes in memory, by subtask and key group.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in await ask_all(job, "states", queries):
        for part in answer["states"]:
            known = merged.setdefault(
                (part["uid"], part["name"]),
                {
                    **{n: part[n] for n in ("uid", "name", "key", "schema")},
                    "title": shown_name(part["name"]),
                    "rows": 0,
                    "bytes": 0,
                    "subtasks": [],
                },
            )
            known["rows"] += part["rows"]
            known["bytes"] += part["bytes"]
            own = ("subtask", "key-groups", "rows", "bytes", "largest-groups", "rows-by-group")
            known["subtasks"].append({name: part[name] for name in own})
    return {"states": [state for _, state in sorted(merged.items())]}


async def hot_keys_of(job: JobDetail, queries: WorkerQueries) -> dict[str, Any]:
    """Return the hottest keys of every keyed operator of a running job, estimated from samples of its rows.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    merged: dict[str, list[dict[str, Any]]] = {}
    for answer in await ask_all(job, "hot-keys", queries):
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


async def ask_all(job: JobDetail, what: str, queries: WorkerQueries) -> list[dict[str, Any]]:
    """Return the answers of all subtasks of a running job to the query `what`.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time, or none would.
    """
    _require_answers(job)
    asking = [
        queries.ask(
            WorkerAddress(place.taskmanager_id, place.worker_id),
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


def _require_answers(job: JobDetail) -> None:
    """Raise PenstockError if a function of the user has not returned for long: its subtasks would not answer."""
    for call in job.summary.slow_calls:
        if call.at:
            msg = f"job {job.summary.name!r} does not answer: {slow_call_since_text(call.what, call.since_ms, call.at)}"
            raise PenstockError(msg, hint="its subtasks answer when the function returns")


def _vertex_of(job: JobDetail, uid: str) -> VertexView:
    vertex = _vertex_with(job, uid)
    if vertex is not None:
        return vertex
    msg = f"job {job.summary.name!r} has no operator with uid {uid!r}"
    raise NotFoundError(msg, hint=did_you_mean(uid, _uids(job.vertices)))


def _vertex_with(job: JobDetail, uid: str) -> VertexView | None:
    return next((v for v in job.vertices if any(o.uid == uid for o in v.operators)), None)


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


#: An idle timeout is advised after this time without rows.
_QUIET_MS = 10_000
#: If rows arrived this recently, the split is being read and only its event times do not advance.
_RECENT_MS = 2_000
#: From this share of the time on, a chain is too slow for its source.
_SATURATED = 0.9
#: A watermark that advanced this recently holds nothing back.
_MOVING_MS = 1_500
_MIN_WATERMARK_MS = -(1 << 63) // 1000


async def watermark_holder_of(job: JobDetail, queries: WorkerQueries, now_ms: int) -> dict[str, Any]:
    """Query every subtask of a running job and merge the answers; see `explain_watermark`.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    answers = await ask_all(job, "watermarks", queries)
    return explain_watermark(job, [part for answer in answers for part in answer["watermarks"]], now_ms)


def explain_watermark(job: JobDetail, parts: Sequence[dict[str, Any]], now_ms: int) -> dict[str, Any]:
    """Return the sources with their splits, lowest first, the vertices' watermarks, and the split that holds them back.

    `parts` are those of `task.drive.state_queries`. `held-by` is the active split with the lowest watermark, with
    `since` (wall ms) and `why`; it is None where no split holds anything back.
    """
    sources = [_source(job, uid, [part for part in parts if part["uid"] == uid]) for uid in _source_uids(parts)]
    counting = [
        {**split, "uid": source["uid"], "subtask": split["subtask"]}
        for source in sources
        for split in source["splits"]
        if not split["idle"] and not split["finished"]
    ]
    lowest = min(counting, key=_order, default=None)
    held = None if lowest is None else _held(job, lowest, now_ms)
    return {
        "jid": job.summary.job_id,
        "name": job.summary.name,
        "now": now_ms,
        "held-by": held,
        "text": _text(held, sources),
        "sources": sources,
        "vertices": [_vertex(vertex) for vertex in job.vertices],
    }


def _source_uids(parts: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(part["uid"] for part in parts))


def _source(job: JobDetail, uid: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    marks = [part["watermark"] for part in parts if not part["idle"]]
    subtasks = [subtask for part in parts if (subtask := _subtask(job, uid, part["subtask"])) is not None]
    splits = [{**split, "subtask": part["subtask"]} for part in parts for split in part["splits"]]
    return {
        "uid": uid,
        "watermark": None if not marks or None in marks else min(marks),
        "idle": all(part["idle"] for part in parts),
        "count": sum(part["count"] for part in parts),
        # the longest time since the external system of a subtask answered, and its begin (wall ms); 0 if it answers
        "unreachable-ms": max(map(_unreachable_ms, subtasks), default=0),
        "unreachable-since": min(filter(None, map(_unreachable_since, subtasks)), default=0),
        "place": _place(job, uid),
        "splits": sorted(splits, key=lambda split: (split["finished"], split["idle"], *_order(split))),
    }


def _order(split: dict[str, Any]) -> tuple[Any, ...]:
    mark = split["watermark"]
    return (mark is not None, mark or 0, -split["standing-ms"], split["id"])


def _held(job: JobDetail, split: dict[str, Any], now_ms: int) -> dict[str, Any]:
    vertex, subtask = _vertex_with(job, split["uid"]), _subtask(job, split["uid"], split["subtask"])
    return {
        "uid": split["uid"],
        "vertex": "" if vertex is None else vertex.id,
        "subtask": split["subtask"],
        "split": split["id"],
        "watermark": split["watermark"],
        "since": now_ms - split["standing-ms"],
        "moving": split["standing-ms"] < _MOVING_MS,
        "why": _why(split, subtask, _place(job, split["uid"])),
    }


def _subtask(job: JobDetail, uid: str, index: int) -> SubtaskView | None:
    vertex = _vertex_with(job, uid)
    return None if vertex is None else vertex.subtasks[index]


def _place(job: JobDetail, uid: str) -> str:
    vertex = _vertex_with(job, uid)
    operators = () if vertex is None else vertex.operators
    return next((operator.place for operator in operators if operator.uid == uid), "")


def _unreachable_ms(subtask: SubtaskView) -> int:
    return int(subtask.metrics.get("sourceUnreachableMs", 0))


def _unreachable_since(subtask: SubtaskView) -> int:
    return int(subtask.metrics.get("sourceUnreachableSince", 0))


def _why(split: dict[str, Any], subtask: SubtaskView | None, place: str) -> str:
    metrics = {} if subtask is None else subtask.metrics
    pressed = metrics.get("backPressuredTimeMsPerSecond", 0.0) / 1000
    if split["standing-ms"] < _MOVING_MS:
        return "it advances, and no other partition has a lower watermark"
    if pressed > 0.5:
        return f"its source is back-pressured {pressed:.0%} of the time: the slow operator is downstream"
    if subtask is not None and (away_ms := _unreachable_ms(subtask)):
        way = "it resumes with the next one; check that its external system is reachable"
        return f"its source {_silence(away_ms, _unreachable_since(subtask), place)}; {way}"
    if split["quiet-ms"] >= _RECENT_MS:
        return _why_quiet(split["quiet-ms"], metrics)
    if split["watermark"] is None:
        return "rows arrive, but none has produced a watermark yet"
    return "rows arrive, but their event times do not advance"


def _why_quiet(quiet_ms: int, metrics: Mapping[str, float]) -> str:
    """Return why no rows come; an idle timeout is only advised if none are known to wait."""
    busy, lag = metrics.get("busyTimeMsPerSecond", 0.0) / 1000, int(metrics.get("recordsLag", 0))
    if busy >= _SATURATED:
        unread = f"; {lag:,} rows are not read yet" if lag else ""
        return f"its source is held up by its own chain, which is busy {min(busy, 1.0):.0%} of the time{unread}"
    way = ""
    if lag:
        way = f"; {lag:,} rows of its subtask are not read yet"
    elif quiet_ms >= _QUIET_MS:
        way = "; an idle timeout (with_idleness) would exclude it"
    return f"no rows from it for {quiet_ms / 1000:,.0f} s{way}"


def _silence(away_ms: int, since_ms: int, place: str) -> str:
    by = f" from {place}" if place else ""
    return f"has had no answer{by} for {away_ms / 1000:,.0f} s, since {utc_text(since_ms)} UTC"


def _text(held: dict[str, Any] | None, sources: Sequence[dict[str, Any]]) -> str:
    if not sources:
        return "no source of this job has event time"
    if held is None:
        if all(split["finished"] for source in sources for split in source["splits"]):
            return "all input is read"
        away = "".join(
            f"; source {s['uid']} {_silence(s['unreachable-ms'], s['unreachable-since'], s['place'])}"
            for s in sources
            if s["unreachable-ms"]
        )
        return f"all splits are idle or finished: nothing holds the watermark back{away}"
    return f"{held['split']} of source {held['uid']} (subtask {held['subtask']}): {held['why']}"


def _vertex(vertex: VertexView) -> dict[str, Any]:
    marks = [subtask.metrics.get("currentInputWatermark") for subtask in vertex.subtasks]
    known = [int(mark) for mark in marks if mark is not None and mark > _MIN_WATERMARK_MS]
    lowest = min(known) if known and len(known) == len(marks) else None
    return {"id": vertex.id, "name": vertex.name, "watermark": lowest}
