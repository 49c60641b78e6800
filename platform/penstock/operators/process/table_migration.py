"""A declared migration (`ps.migrate`) in the form that a state's table takes: from old columns to the present ones.

Called by `process_states` and `process_collections` when a state is bound.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.errors import StateMismatchError
from penstock.core.schema import schema_from_text
from penstock.operators.rows.user_functions import user_error
from penstock.state.log.migration import Migration

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.functions.migration import MigrateValues
    from penstock.operators.process.process_values import ValueCodec


def keeps_all(migration: Migration, where: str) -> Migration:
    """Return the migration of a list with a time-to-live, which must keep all elements: they expire in order."""
    convert = migration.convert

    def all_of(old: list[dict[str, Any]]) -> tuple[np.ndarray, list[pa.Array]]:
        stay, columns = convert(old)
        if not stay.all():
            msg = f"{where}: migration {migration.by} leaves out an element of a list with a time-to-live"
            raise StateMismatchError(msg, hint="return something in its place, and ignore that value when reading")
        return stay, columns

    return dataclasses.replace(migration, convert=all_of)


def migration_of(was: str | None, function: Any, codec: ValueCodec, where: str) -> Migration | None:
    """Return the migration of a state in its table's form; `was` are the old columns as text, None without one."""
    if was is None:
        return None
    made: MigrateValues = function

    def convert(old: list[dict[str, Any]]) -> tuple[np.ndarray, list[pa.Array]]:
        try:
            new = [made.function(value) for value in old]
        except Exception as error:
            raise user_error(f"{where}: migration {made.by}", error) from error
        stay = np.fromiter((value is not None for value in new), np.bool_, len(new))
        kept = [value for value in new if value is not None]
        return stay, codec.encode(kept) if kept else []

    columns = schema_from_text(was)
    return Migration(columns, made.by, tuple(columns.names), convert)
