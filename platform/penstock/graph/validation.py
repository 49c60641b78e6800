"""Checks of a stream graph before anything runs; each fault is one `GraphError` that says how to fix the job.

`penstock.api` calls the column checks. `penstock.graph.chaining` has the whole graph checked, with its views.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.errors import GraphError, did_you_mean
from penstock.graph.job_graph import KeyGroup
from penstock.graph.operator_kinds import properties_of
from penstock.graph.stream_graph import NAME, StreamGraph, StreamNode

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that a window adds to its output; an input column of that name would be hidden.
WINDOW_COLUMNS = ("window_start", "window_end")
#: Key column types whose hash is the same here and in Spark (`penstock.kernels` has the same list).
KEY_TYPES = "int8-int64, uint8-uint32, bool, float32, float64, string, binary, date, timestamp, decimal128"
_NAME_RULE = "use letters, digits, '-', '_' and '.', at most 100, beginning with a letter or digit"


def require_columns(columns: Sequence[str], known: Sequence[str], where: str) -> None:
    """Check that all columns exist.

    Raises:
        GraphError: one does not; names the nearest.
    """
    for column in columns:
        if column not in known:
            msg = f"{where}: unknown column {column!r}"
            raise GraphError(msg, hint=did_you_mean(column, known))


def require_unique(names: Sequence[str], where: str) -> None:
    """Check that no name occurs twice.

    Raises:
        GraphError: one does.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            msg = f"{where}: column {name!r} occurs twice"
            raise GraphError(msg, hint="give one of them another name, for example with .alias(...)")
        seen.add(name)


def require_key_types(columns: Sequence[str], schema: pa.Schema, where: str) -> None:
    """Check that rows can be partitioned by the columns.

    Raises:
        GraphError: a column is missing or its type cannot be a key.
    """
    require_columns(columns, [n for n in schema.names if not n.startswith("__")], where)
    for column in columns:
        data_type = schema.field(column).type
        if not is_key_type(data_type):
            msg = f"{where}: column {column!r} of type {data_type} cannot be a key"
            raise GraphError(msg, hint=f"keys can be {KEY_TYPES}; convert it first with .with_columns(...)")


def is_key_type(data_type: pa.DataType) -> bool:
    """Return whether a column of that type can be part of a key."""
    import pyarrow as pa

    types: Any = pa.types
    return bool(
        types.is_signed_integer(data_type)
        or (types.is_unsigned_integer(data_type) and not types.is_uint64(data_type))
        or types.is_boolean(data_type)
        or types.is_float32(data_type)
        or types.is_float64(data_type)
        or types.is_string(data_type)
        or types.is_binary(data_type)
        or types.is_date32(data_type)
        or types.is_timestamp(data_type)
        or types.is_decimal128(data_type)
    )


def require_no_window_columns(names: Sequence[str], where: str) -> None:
    """Check that a window's input has no column of the names that the window adds.

    Raises:
        GraphError: it has.
    """
    for name in WINDOW_COLUMNS:
        if name in names:
            msg = f"{where}: the input already has a column {name!r}, which the window adds"
            raise GraphError(msg, hint=f"rename it first: .select(pl.exclude({name!r}), pl.col({name!r}).alias(...))")


def require_name(name: str, what: str) -> None:
    """Check that a job name or uid can be part of paths and transactional ids.

    Raises:
        GraphError: it cannot.
    """
    given: Any = name
    if not isinstance(given, str) or not NAME.fullmatch(given):
        msg = f"{what} {name!r} cannot be used in paths and transactional ids"
        raise GraphError(msg, hint=_NAME_RULE)


def validate(graph: StreamGraph, *, complete: bool = True) -> None:
    """Check the whole graph; without `complete`, operators may lack a reader.

    Raises:
        GraphError: it cannot run as written.
    """
    require_name(graph.name, "job name")
    _check_uids(graph)
    for node in graph.nodes:
        _check_parallelism(graph, node)
        if complete:
            _check_output_used(graph, node)
            _check_side_outputs(graph, node)
        check_views(graph, node)
        _check_spread(graph, node)
    _check_delivery(graph)
    _check_folders(graph)


def _check_uids(graph: StreamGraph) -> None:
    seen: dict[str, StreamNode] = {}
    for node in graph.nodes:
        uid = node.operator.uid
        if not uid:
            kind = node.operator.kind
            what = f"the {kind}" if kind in {"source", "sink"} else "the stateful operator"
            msg = f"{what} {node.label} has no uid"
            way = "uid='...'" if kind in {"source", "sink"} else ".uid('...')"
            raise GraphError(msg, hint=f"its state is found by uid after a restart: add {way}")
        require_name(uid, "uid")
        if uid in seen:
            msg = f"uid {uid!r} is given twice: {_at(seen[uid])} and {_at(node)}"
            raise GraphError(msg, hint="give each operator a unique uid")
        seen[uid] = node


def _check_parallelism(graph: StreamGraph, node: StreamNode) -> None:
    parallelism = graph.parallelism(node)
    if parallelism < 1:
        msg = f"{node.label}: parallelism {parallelism} is not a number of subtasks"
        raise GraphError(msg, hint="use 1 or more")
    keyed = any(isinstance(e.partitioner, KeyGroup) for e in graph.in_edges(node.id))
    if keyed and parallelism > graph.settings.key_groups:
        msg = f"{node.label}: parallelism {parallelism} is more than the {graph.settings.key_groups} key groups"
        raise GraphError(msg, hint="lower it, or raise ps.Environment(key_groups=...)")


def _check_spread(graph: StreamGraph, node: StreamNode) -> None:
    """Check that no row of a spread key is processed again: the watermark of its new part may have passed it."""
    if node.operator.kind == "spread_key" and graph.settings.checkpoint_mode == "at-least-once":
        msg = f"{node.label}: a key with spread= needs exactly-once checkpoints: rows that are read again could be lost"
        raise GraphError(msg, hint='remove spread=, or set ps.Environment(checkpoint_mode="exactly-once")')


def _check_output_used(graph: StreamGraph, node: StreamNode) -> None:
    if properties_of(node.operator.kind).has_output and not graph.out_edges(node.id):
        msg = f"the output of {node.label} has no reader"
        raise GraphError(msg, hint="end it with .sink_to(...) or .print(), or remove the operator")


def _check_side_outputs(graph: StreamGraph, node: StreamNode) -> None:
    """Check that side outputs a user asked for (such as undecodable records) have a reader."""
    read = {e.side_output for e in graph.out_edges(node.id)}
    for tag in node.side_outputs:
        if tag not in read and not node.side_outputs_optional:
            msg = f"{node.label} writes rows to side output {tag!r}, which has no reader"
            raise GraphError(msg, hint=f"read them: .side_output({tag!r}).sink_to(...)")


def _check_delivery(graph: StreamGraph) -> None:
    """Check that an unbounded job with an exactly-once sink has checkpoints; without, it would never publish."""
    endless = [n for n in graph.nodes if n.operator.kind == "source" and not _config(n, "source").get("bounded", False)]
    if not endless or graph.settings.checkpoint_interval_ms is not None:
        return
    for node in graph.nodes:
        delivery = _config(node, "sink").get("delivery", "none") if node.operator.kind == "sink" else "none"
        if delivery.startswith("exactly-once"):
            msg = f"{node.label} delivers {delivery}, but without checkpoints nothing would ever be published"
            raise GraphError(msg, hint="set ps.Environment(checkpoint_interval='5s'), or another delivery")


def _check_folders(graph: StreamGraph) -> None:
    """Refuse a local folder with two sinks: its readers cannot tell which sink wrote a row."""
    sinks: dict[str, StreamNode] = {}
    for node in graph.nodes:
        place = _config(node, "sink").get("place", "") if node.operator.kind == "sink" else ""
        if not place.startswith("/"):
            continue
        folder = os.path.normpath(place)
        if folder in sinks:
            msg = f"two sinks write to the folder {folder}: {_at(sinks[folder])} and {_at(node)}"
            raise GraphError(msg, hint="give each sink its own folder, or join the streams with .union(...) first")
        sinks[folder] = node


def check_views(graph: StreamGraph, node: StreamNode) -> None:
    """Check one operator's input.

    Raises:
        GraphError: a column of it is a view; names the operator, the column and a solution.
    """
    from penstock.core.schema import schema_from_text  # imports Pydantic, which the JobManager seldom needs

    for edge in graph.in_edges(node.id):
        for field in schema_from_text(edge.schema) if edge.schema else ():
            _check(node, field)


def _check(node: StreamNode, field: pa.Field) -> None:
    from penstock.core.views import holds_views, is_view

    if not holds_views(field.type):
        return
    if not is_view(field.type):
        msg = f"{node.label}: column {field.name!r} is {field.type}, which contains views"
        raise GraphError(msg, hint="views work for whole columns only: let the source declare plain strings in it")
    if not properties_of(node.operator.kind).takes_views:
        kind = "String" if str(field.type) == "string_view" else "Binary"
        way = f".with_columns(pl.col({field.name!r}).cast(pl.{kind}))"
        msg = f"{node.label}: column {field.name!r} is {field.type}, a type that this operator does not accept"
        raise GraphError(msg, hint=f"convert it to plain values first: {way}")


def _config(node: StreamNode, key: str) -> dict[str, Any]:
    value: dict[str, Any] = node.operator.config.get(key) or {}
    return value


def _at(node: StreamNode) -> str:
    return f"{node.operator.name} at {node.where}" if node.where else node.operator.name
