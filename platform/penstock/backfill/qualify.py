"""Which operators give in a backfill what they give live; pure. Asked by `penstock backfill` and `check --backfill`.

A backfill sees the rows of a key in the order of event time, none of them late. What depends on when or in which order
rows come is refused; some of it can be accepted by name, by who knows that it makes no difference to the job.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from penstock.core.errors import UsageError
from penstock.core.names import near
from penstock.eventtime.strategy import strategy_from_builtins
from penstock.functions.reduce_function import REDUCED
from penstock.graph.job_graph import Broadcast, JobGraph, JobVertex, OperatorSpec

#: Kinds whose result follows from the rows of a key and their event times.
_EQUAL = frozenset(
    {
        *("source", "assign_watermarks", "project", "key_selector", "constant_key", "map", "flat_map", "filter_rows"),
        *("map_batches", "process", "co_process", "window_aggregate", "zoned_window", "session_aggregate"),
        *("interval_join", "window_join", "window_rows_join", "temporal_join"),
    }
)
_ARRIVAL = "what it emits depends on the order in which rows arrive"
_UNKEYED = "its state is not by key: it depends on which subtask a row comes to"
_PROCESSING = "it goes by processing time"
_TTL = "its time-to-live goes by the clock: in a backfill of years that takes minutes nothing expires"
#: kind -> why it is refused unless accepted by name.
_ACCEPTABLE = {
    "running_aggregate": _ARRIVAL,
    "deduplicate": _ARRIVAL,
    "window_rows": f"{_ARRIVAL}, where it has a trigger or a function that looks at it",
    "plain_process": _UNKEYED,
    "window_top": _UNKEYED,
}
#: kind -> why there is no way.
_NEVER = {
    "processing_window": _PROCESSING,
    "map_async": "what it has under way is not by key, and its answers come in any order",
    "broadcast_process": "a broadcast stream has no place in a backfill",
    "collect": "execute_and_collect() has no sink that publishes once",
    "print": "print() has no sink that publishes once",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Why one operator does not qualify; `accepted` by name or not."""

    uid: str
    kind: str
    reason: str
    acceptable: bool
    accepted: bool = False


def findings(graph: JobGraph, accept: Collection[str] = ()) -> list[Finding]:
    """Return what in a job does not qualify, in its order.

    Raises:
        UsageError: `accept` names an operator that needs no accepting.
    """
    found = []
    for vertex in graph.vertices:
        broadcast = any(isinstance(edge.partitioner, Broadcast) for edge in graph.in_edges(vertex.id))
        for operator in vertex.operators:
            finding = _judge(operator, vertex, fed_by_broadcast=broadcast and operator is vertex.operators[0])
            if finding is not None:
                accepted = finding.acceptable and operator.uid in accept
                found.append(msgspec.structs.replace(finding, accepted=accepted))
    known = {finding.uid: None for finding in found if finding.acceptable}
    for uid in accept:
        if uid not in known:
            raise UsageError(f"--accept {uid}: no operator of that uid needs it", hint=near(uid, known))
    return found


def require_qualified(graph: JobGraph, accept: Collection[str] = ()) -> None:
    """Refuse a job of which something does not qualify and is not accepted.

    Raises:
        UsageError: names the first operator and the way out.
    """
    for finding in findings(graph, accept):
        if not finding.accepted:
            way = f"accept it with --accept {finding.uid}" if finding.acceptable else "run the job live over its input"
            raise UsageError(f"{finding.uid!r} ({finding.kind}) cannot be backfilled: {finding.reason}", hint=way)


def _judge(operator: OperatorSpec, vertex: JobVertex, *, fed_by_broadcast: bool) -> Finding | None:
    kind, acceptable = operator.kind, operator.kind in _ACCEPTABLE
    reason = _ACCEPTABLE.get(kind) or _NEVER.get(kind, "")
    if fed_by_broadcast:
        reason, acceptable = _NEVER["broadcast_process"], False
    elif kind in ("source", "assign_watermarks"):
        strategy = strategy_from_builtins(operator.config.get("watermarks"))
        reason, letters = "", _dead_letters(operator)
        if strategy.kind == "ingestion":
            reason = "its event time is the time of ingestion"
        elif kind == "assign_watermarks" and strategy.kind == "generator":
            reason, acceptable = "its generator is asked at rows only in a backfill, and not by the clock", True
        elif letters:
            reason, acceptable = (
                f"its reader publishes to {letters!r} by itself, again whenever a task runs again",
                True,
            )
    elif kind == "sink":
        delivery = operator.config["sink"]["delivery"]
        reason = (
            "" if delivery == "exactly-once" else f"delivery {delivery!r} has no output that can wait to be published"
        )
    elif operator.keyed and vertex.is_source:
        reason, acceptable = "it has keys and no shuffle between it and the source", False
    elif operator.config.get("window", {}).get("time") == "processing":
        reason, acceptable = _PROCESSING, False
    elif not reason and kind not in _EQUAL:
        reason = "this kind of operator is not known here"
    elif not reason:
        reason = _reason_of_state(operator)
        acceptable = bool(reason)
    if not reason:
        return None
    return Finding(uid=operator.uid, kind=kind, reason=reason, acceptable=acceptable)


def _dead_letters(operator: OperatorSpec) -> str:
    """Return the topic that a source's reader writes bad records to, past all sinks; empty if it has none."""
    source = operator.config.get("source") or {}
    return source.get("config", {}).get("dead_letter_topic") or ""


def _reason_of_state(operator: OperatorSpec) -> str:
    """Return why what an operator keeps may differ; empty if it does not."""
    if REDUCED in operator.config.get("states", ()):
        return _ARRIVAL
    kinds = operator.config.get("kinds", {}).values()
    return _TTL if "ttl" in operator.config or any("ttl" in kind for kind in kinds) else ""
