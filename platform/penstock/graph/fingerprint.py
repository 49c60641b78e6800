"""The fingerprint of a job graph: a hash of the parts that must fit a snapshot.

Parallelism, names, settings and stateless operators are not part of it: a job may change them and resume its
checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.graph.job_graph import JobEdge, JobVertex, KeyGroup, OperatorSpec

#: Kinds whose whole configuration shapes their state.
_STATE_CONFIG = {
    "window_aggregate": ("key", "window", "aggregates"),
    "window_rows": ("key", "window"),
    "zoned_window": ("key", "window", "aggregates"),
    "processing_window": ("key", "window", "aggregates"),
    "session_aggregate": ("key", "window", "aggregates"),
    "window_top": ("window", "by", "count", "descending", "ties"),
    "running_aggregate": ("key", "aggregates"),
    "deduplicate": ("key", "keep", "by"),
    "interval_join": ("left_key", "right_key", "suffix"),
    "temporal_join": ("left_key", "right_key", "suffix", "how"),
    "window_join": ("left_key", "right_key", "suffix", "window", "how"),
    "window_rows_join": ("left_key", "right_key", "suffix", "window", "how"),
}
#: Keys that were added to a configuration later: hashed only where they are given.
_ADDED = {"interval_join": ("how",)}


def fingerprint(vertices: Sequence[JobVertex], edges: Sequence[JobEdge]) -> str:
    """Return 32 hex digits over uids, kinds, state schemas and key columns of the stateful operators."""
    keys = {e.target: list(e.partitioner.columns) for e in edges if isinstance(e.partitioner, KeyGroup)}
    parts = [
        [*_state_of(operator), keys.get(vertex.id, []) if operator is vertex.operators[0] else []]
        for vertex in vertices
        for operator in vertex.operators
        if operator.stateful
    ]
    text = msgspec.json.encode(sorted(parts, key=str), order="sorted")
    return hashlib.blake2b(text, digest_size=16, person=b"penstock.graph").hexdigest()


def _state_of(operator: OperatorSpec) -> list[Any]:
    config = operator.config
    if operator.kind in _STATE_CONFIG:
        shape: Any = {key: config.get(key) for key in _STATE_CONFIG[operator.kind]}
        shape |= {key: config[key] for key in _ADDED.get(operator.kind, ()) if key in config}
        fields = _fields(operator.output_schema)
        if operator.kind == "deduplicate":  # the other columns are not in its state
            kept = {*config.get("key", ()), config.get("by")}
            fields = [field for field in fields if field.rpartition(": ")[0] in kept]
        return [operator.uid, operator.kind, shape, fields]
    connector = config.get("source") or config.get("sink") or {}
    return [operator.uid, operator.kind, connector.get("factory", ""), connector.get("delivery", "")]


def _fields(schema: str) -> list[str]:
    """Return `name: type` of each column; the text form of a schema itself may differ between Arrow versions."""
    if not schema:
        return []
    from penstock.core.schema import schema_from_text

    return [f"{field.name}: {field.type}" for field in schema_from_text(schema)]
