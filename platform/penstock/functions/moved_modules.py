"""Modules that users' pickled functions may name by an earlier path; read by `operators.rows.user_functions`.

The graph of a running job is pickled by the version that submitted it. A JobManager of a newer version starts its
workers from that graph.
"""

from __future__ import annotations

#: Earlier path -> present one. Kept for one release.
MOVED = {
    f"penstock.operators.{before}": f"penstock.functions.{now}"
    for before, now in {
        "async_retry": "async_retry",
        "broadcast_state": "broadcast_state",
        "evictors": "evictors",
        "folding_state": "folding_states",
        "keyed_collections": "keyed_states",
        "migrate": "migration",
        "operator_state": "operator_lists",
        "process_function": "process_function",
        "reduce_function": "folding_states",
        "state_cells": "state_handles",
        "state_ttl": "state_ttl",
        "timer_queue": "state_handles",
        "triggers": "triggers",
        "window_function": "window_functions",
    }.items()
} | {
    "penstock.functions.reduce_function": "penstock.functions.folding_states",
    "penstock.functions.timer_queue": "penstock.functions.state_handles",
    "penstock.eventtime.generator": "penstock.eventtime.strategy",
}
