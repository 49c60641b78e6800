"""The states that a process function declares, each bound to a table of its operator.

The API stores the declarations in the operator's config (`states`: value columns; `kinds`: the kind of a state that is
no value) and payload (row types). Called by `penstock.operators.process.keyed_process` when it opens.
"""

from __future__ import annotations

from typing import Any

from penstock.core.schema import schema_from_text
from penstock.functions.broadcast_state import BROADCAST
from penstock.functions.folding_states import over
from penstock.functions.state_ttl import ttl_of
from penstock.operators.process.bound_broadcast import BoundBroadcast
from penstock.operators.process.process_collections import bind_entries
from penstock.operators.process.process_values import BoundValue, ValueCodec
from penstock.operators.process.state_binding import BoundState, Home, StateConfig, StateTypes
from penstock.operators.process.table_migration import migration_of


def bind_states(function: Any, config: dict[str, Any], types: dict[Any, Any], home: Home) -> list[BoundState]:
    """Declare (and so restore) every state of a function and set its handles."""
    bound: list[BoundState] = []
    kinds = config.get("kinds", {})
    for name, text in config.get("states", {}).items():
        kind = kinds.get(name, {})
        keys = kind.get("keys")
        declared = StateConfig(
            kind.get("kind", "value"),
            schema_from_text(text),
            None if keys is None else schema_from_text(keys),
            f"{home.where}: state {name!r}",
            ttl_of(kind, home.clock),
        )
        found = StateTypes(types.get(name), types.get((name, "key")))
        made: BoundState
        if declared.kind == BROADCAST:
            made = BoundBroadcast(name, declared, found)
        elif declared.kind in ("list", "map"):
            function_of = types.get((name, "migrate"))
            made = bind_entries(name, declared, found, home, (kind.get("migrates"), function_of))
        else:
            codec = ValueCodec(declared.values, found.values, declared.where)
            migration = migration_of(kind.get("migrates"), types.get((name, "migrate")), codec, declared.where)
            table = home.state.value(name, tuple(declared.values), declared.ttl, migration)
            made = BoundValue(home.current, table, codec)
        given: Any = made.handle
        if declared.kind in ("reducing", "aggregating"):
            given = over(getattr(function, name), given)
        setattr(function, name, given)
        bound.append(made)
    return bound
