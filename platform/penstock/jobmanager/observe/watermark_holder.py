"""Finds the split that holds a running job's watermark back, and since when.

`explain_watermark` is a pure function of the subtasks' answers; `holder_of` collects them. Called by
`penstock.rest.jobs.live_state_requests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.jobmanager.cluster.worker_queries import Questions
from penstock.jobmanager.messages.views import JobDetail, VertexView
from penstock.jobmanager.observe.live_state import ask_all

#: If rows arrived this recently, the split is being read and only its event times do not advance.
_RECENT_MS = 2_000
#: A watermark that advanced this recently holds nothing back.
_MOVING_MS = 1_500
_MIN_WATERMARK_MS = -(1 << 63) // 1000


async def holder_of(job: JobDetail, questions: Questions, now_ms: int) -> dict[str, Any]:
    """Query every subtask of a running job and merge the answers; see `explain_watermark`.

    Raises:
        UsageError: the job is not running. PenstockError: no answer arrived in time.
    """
    answers = await ask_all(job, "watermarks", questions)
    return explain_watermark(job, [part for answer in answers for part in answer["watermarks"]], now_ms)


def explain_watermark(job: JobDetail, parts: Sequence[dict[str, Any]], now_ms: int) -> dict[str, Any]:
    """Return the sources with their splits, lowest first, the vertices' watermarks, and the split that holds them back.

    `parts` are those of `task.drive.watermark_report`. `held-by` is the active split with the lowest watermark, with
    `since` (wall ms) and `why`; it is None where no split holds anything back.
    """
    sources = [_source(uid, [part for part in parts if part["uid"] == uid]) for uid in _uids(parts)]
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


def _uids(parts: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(part["uid"] for part in parts))


def _source(uid: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    marks = [part["watermark"] for part in parts if not part["idle"]]
    splits = [{**split, "subtask": part["subtask"]} for part in parts for split in part["splits"]]
    return {
        "uid": uid,
        "watermark": None if not marks or None in marks else min(marks),
        "idle": all(part["idle"] for part in parts),
        "count": sum(part["count"] for part in parts),
        "splits": sorted(splits, key=lambda split: (split["finished"], split["idle"], *_order(split))),
    }


def _order(split: dict[str, Any]) -> tuple[Any, ...]:
    mark = split["watermark"]
    return (mark is not None, mark or 0, -split["standing-ms"], split["id"])


def _held(job: JobDetail, split: dict[str, Any], now_ms: int) -> dict[str, Any]:
    vertex = next((v for v in job.vertices if any(o.uid == split["uid"] for o in v.operators)), None)
    subtask = None if vertex is None else vertex.subtasks[split["subtask"]]
    pressed = 0.0 if subtask is None else subtask.metrics.get("backPressuredTimeMsPerSecond", 0.0)
    return {
        "uid": split["uid"],
        "vertex": "" if vertex is None else vertex.id,
        "subtask": split["subtask"],
        "split": split["id"],
        "watermark": split["watermark"],
        "since": now_ms - split["standing-ms"],
        "moving": split["standing-ms"] < _MOVING_MS,
        "why": _why(split, pressed / 1000),
    }


def _why(split: dict[str, Any], pressed: float) -> str:
    if split["standing-ms"] < _MOVING_MS:
        return "it advances; all others are ahead of it"
    if pressed > 0.5:
        return f"its source is back-pressured {pressed:.0%} of the time: the slow operator is downstream"
    if split["quiet-ms"] >= _RECENT_MS:
        seconds = split["quiet-ms"] / 1000
        return f"no rows from it for {seconds:,.0f} s; an idle timeout (with_idleness) would exclude it"
    if split["watermark"] is None:
        return "rows arrive, but none has produced a watermark yet"
    return "rows arrive, but their event times do not advance"


def _text(held: dict[str, Any] | None, sources: Sequence[dict[str, Any]]) -> str:
    if not sources:
        return "no source of this job has event time"
    if held is None:
        done = all(split["finished"] for source in sources for split in source["splits"])
        return "all input is read" if done else "all splits are idle or finished: nothing holds the watermark back"
    return f"{held['split']} of source {held['uid']} (subtask {held['subtask']}): {held['why']}"


def _vertex(vertex: VertexView) -> dict[str, Any]:
    marks = [subtask.metrics.get("currentInputWatermark") for subtask in vertex.subtasks]
    known = [int(mark) for mark in marks if mark is not None and mark > _MIN_WATERMARK_MS]
    lowest = min(known) if known and len(known) == len(marks) else None
    return {"id": vertex.id, "name": vertex.name, "watermark": lowest}
