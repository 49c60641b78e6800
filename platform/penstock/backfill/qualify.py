"""Which operators give the same result in a backfill as live; pure.

Used by `penstock backfill` and `check --backfill`.

A backfill sees the rows of a key in the order of event time, none of them late. Operators that depend on when or in
which order rows arrive are refused. A user can accept some of them by name, if the difference does not matter to the
job.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pyarrow as pa

from penstock.core.errors import UsageError, did_you_mean
from penstock.core.schema import schema_from_text
from penstock.eventtime.strategy import strategy_from_builtins
from penstock.functions.folding_states import REDUCED
from penstock.graph.job_graph import Broadcast, JobEdge, JobGraph, JobVertex, OperatorSpec

#: Kinds whose result depends only on the rows of a key and their event times.
_EQUAL = frozenset(
    {
        *("source", "assign_watermarks", "project", "key_selector", "constant_key", "map", "flat_map", "filter_rows"),
        *("map_batches", "process", "co_process", "window_aggregate", "zoned_window", "session_aggregate"),
        *("spread_key", "partial_window", "merged_window"),
        *("interval_join", "window_join", "window_rows_join", "temporal_join"),
    }
)
_ARRIVAL = "its output depends on the order in which rows arrive"
_UNKEYED = "its state is not keyed: it depends on the subtask that receives a row"
_PROCESSING = "it uses processing time"
_TTL = "its time-to-live uses the clock: a backfill takes minutes for years, so nothing expires"
#: kind -> why it is refused unless accepted by name.
_ACCEPTABLE = {
    "running_aggregate": _ARRIVAL,
    "deduplicate": _ARRIVAL,
    "window_rows": f"{_ARRIVAL}, if it has a trigger or a function that depends on it",
    "plain_process": _UNKEYED,
    "window_top": _UNKEYED,
}
#: kind -> why it is always refused.
_NEVER = {
    "processing_window": _PROCESSING,
    "map_async": "its pending requests are not keyed, and its results come in any order",
    "broadcast_process": "a backfill has no broadcast streams",
    "collect": "execute_and_collect() has no exactly-once sink",
    "print": "print() has no exactly-once sink",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why one operator does not qualify, and whether the user accepted it."""

    uid: str
    kind: str
    reason: str
    acceptable: bool
    accepted: bool = False
    #: The solution of one that is not acceptable.
    way_out: str = "run the job live over its input"


def findings(graph: JobGraph, accept: Collection[str] = ()) -> list[Finding]:
    """Return the operators of a job that do not qualify, in the job's order.

    Raises:
        UsageError: `accept` names an operator that needs no accepting.
    """
    found = []
    for vertex in graph.vertices:
        broadcast = any(isinstance(edge.partitioner, Broadcast) for edge in graph.in_edges(vertex.id))
        found += [_of_dictionary(edge, vertex.operators[0]) for edge in graph.in_edges(vertex.id) if _encoded(edge)]
        for operator in vertex.operators:
            finding = _judge(operator, vertex, fed_by_broadcast=broadcast and operator is vertex.operators[0])
            if finding is not None:
                accepted = finding.acceptable and operator.uid in accept
                found.append(msgspec.structs.replace(finding, accepted=accepted))
    known = {finding.uid: None for finding in found if finding.acceptable}
    for uid in accept:
        if uid not in known:
            raise UsageError(f"--accept {uid}: no operator of that uid needs it", hint=did_you_mean(uid, known))
    return found


def require_qualified(graph: JobGraph, accept: Collection[str] = ()) -> None:
    """Refuse a job with an operator that neither qualifies nor is accepted.

    Raises:
        UsageError: names the first such operator and a solution.
    """
    for finding in findings(graph, accept):
        if not finding.accepted:
            way = f"accept it with --accept {finding.uid}" if finding.acceptable else finding.way_out
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
            reason = "its event time is the ingestion time"
        elif kind == "assign_watermarks" and strategy.kind == "generator":
            reason, acceptable = "a backfill calls its generator for rows only, and not by the clock", True
        elif letters:
            reason, acceptable = (
                f"its reader itself writes bad records to {letters!r}, and again when a task is repeated",
                True,
            )
    elif kind == "sink":
        delivery = operator.config["sink"]["delivery"]
        reason = (
            ""
            if delivery == "exactly-once"
            else f"delivery {delivery!r} has no staged output that can be published later"
        )
    elif operator.keyed and vertex.is_source:
        reason, acceptable = "it is keyed without a shuffle between it and the source", False
    elif operator.config.get("window", {}).get("time") == "processing":
        reason, acceptable = _PROCESSING, False
    elif not reason and kind not in _EQUAL:
        reason = "backfills do not know this kind of operator"
    elif not reason:
        reason = _reason_of_state(operator)
        acceptable = bool(reason)
    if not reason:
        return None
    return Finding(uid=operator.uid, kind=kind, reason=reason, acceptable=acceptable)


def _encoded(edge: JobEdge) -> list[str]:
    """Return the columns of an edge with dictionaries."""
    return [field.name for field in schema_from_text(edge.schema) if _has_dictionary(field.type)]


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def _of_dictionary(edge: JobEdge, operator: OperatorSpec) -> Finding:
    columns = _encoded(edge)
    return Finding(
        uid=operator.uid,
        kind=operator.kind,
        reason=f"stages do not exchange dictionary-encoded columns: {', '.join(columns)}",
        acceptable=False,
        way_out=f"cast before it, as in .with_columns(pl.col({columns[0]!r}).cast(pl.String)), or drop the column",
    )


def _dead_letters(operator: OperatorSpec) -> str:
    """Return the topic to which a source's reader writes bad records, past all sinks; empty if it has none."""
    source = operator.config.get("source") or {}
    return source.get("config", {}).get("dead_letter_topic") or ""


def _reason_of_state(operator: OperatorSpec) -> str:
    """Return why the state of an operator may differ; empty if it does not."""
    if REDUCED in operator.config.get("states", ()):
        return _ARRIVAL
    kinds = operator.config.get("kinds", {}).values()
    return _TTL if "ttl" in operator.config or any("ttl" in kind for kind in kinds) else ""
