"""The properties of each kind of operator that the graph, its checks and the task need: one entry for each kind.

`penstock.operators.registry` has the class of each kind. A kind is part of the graph's wire form, so it is never
renamed.
"""

from __future__ import annotations

import msgspec


class OperatorKind(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a kind of operator."""

    #: Names of the non-keyed state that it restores; a restart from state of any other name is refused. The names of a
    #: function without keys are those that it declares (`OperatorSpec.operator_states`).
    restores: tuple[str, ...] = ()
    #: Whether it keeps keyed state, if it is stateful: then it takes a share of the slot's managed memory.
    keyed: bool = False
    #: Keys of its configuration that shape its state; a job with other values does not fit a snapshot.
    state_config: tuple[str, ...] = ()
    #: Such keys that were added later: compared only where they are given.
    added_state_config: tuple[str, ...] = ()
    #: Whether it calls a Python function for each row: its input is divided into parts that take milliseconds.
    by_row: bool = False
    #: Whether it passes columns of views on or converts them to plain columns; others are refused them.
    takes_views: bool = False
    #: Whether it has an output.
    has_output: bool = True


_WATERMARK = ("watermark",)
_AGGREGATE = OperatorKind(keyed=True, restores=_WATERMARK, state_config=("key", "window", "aggregates"))
_WINDOW_JOIN = ("left_key", "right_key", "suffix", "window", "how")
#: kind -> its properties, for each kind of `operators.registry`.
KINDS = {
    "source": OperatorKind(restores=("splits", "watermark")),
    "assign_watermarks": OperatorKind(restores=_WATERMARK),
    "project": OperatorKind(takes_views=True),
    "key_selector": OperatorKind(by_row=True),
    "constant_key": OperatorKind(),
    "spread_key": OperatorKind(takes_views=True),
    "map": OperatorKind(by_row=True),
    "flat_map": OperatorKind(by_row=True),
    "filter_rows": OperatorKind(by_row=True),
    "map_batches": OperatorKind(),
    "map_async": OperatorKind(by_row=True, restores=("in-flight",)),
    "plain_process": OperatorKind(by_row=True),
    "process": OperatorKind(keyed=True, by_row=True, restores=_WATERMARK),
    "co_process": OperatorKind(keyed=True, by_row=True, restores=_WATERMARK),
    "broadcast_process": OperatorKind(keyed=True, by_row=True, restores=("broadcast", "watermark")),
    "window_aggregate": _AGGREGATE,
    "zoned_window": _AGGREGATE,
    "partial_window": _AGGREGATE,
    "merged_window": _AGGREGATE,
    "processing_window": _AGGREGATE,
    "session_aggregate": _AGGREGATE,
    "window_rows": OperatorKind(keyed=True, by_row=True, restores=_WATERMARK, state_config=("key", "window")),
    "window_top": OperatorKind(restores=("top",), state_config=("window", "by", "count", "descending", "ties")),
    "running_aggregate": OperatorKind(keyed=True, state_config=("key", "aggregates")),
    "deduplicate": OperatorKind(keyed=True, state_config=("key", "keep", "by")),
    "interval_join": OperatorKind(
        keyed=True,
        restores=_WATERMARK,
        state_config=("left_key", "right_key", "suffix"),
        added_state_config=("how",),
    ),
    "temporal_join": OperatorKind(
        keyed=True, restores=_WATERMARK, state_config=("left_key", "right_key", "suffix", "how")
    ),
    "window_join": OperatorKind(keyed=True, restores=_WATERMARK, state_config=_WINDOW_JOIN),
    "window_rows_join": OperatorKind(keyed=True, by_row=True, restores=_WATERMARK, state_config=_WINDOW_JOIN),
    "sink": OperatorKind(takes_views=True, has_output=False),
    "collect": OperatorKind(takes_views=True, has_output=False),
    "print": OperatorKind(takes_views=True, has_output=False),
}
#: Kinds of operators that have no output.
ENDS = frozenset(name for name, kind in KINDS.items() if not kind.has_output)
_UNKNOWN = OperatorKind()


def properties_of(kind: str) -> OperatorKind:
    """Return the properties of a kind; an unknown one, of another version's graph, has none."""
    return KINDS.get(kind, _UNKNOWN)
