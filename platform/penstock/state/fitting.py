"""Adaptation of restored columns to the job's state: a spec with their field ids, or a migration.

Called by `penstock.state.store` when a state is declared.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from penstock.core.aggregate_evolution import evolve_state, require_same_window
from penstock.core.errors import StateMismatchError
from penstock.core.evolution import EVOLVES, conform, is_migrated
from penstock.core.join_evolution import require_same_join
from penstock.core.schema import schema_from_text
from penstock.state.cells.accumulators import PaneTableSpec
from penstock.state.log.row_spec import RowSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.snapshot import KeyedStateSnapshot
    from penstock.state.log.migration import Migration
    from penstock.state.log.segment_columns import StateSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Migrating:
    """A migration that applies to the restored snapshots."""

    migration: Migration
    #: The columns of the snapshots; files from before an evolution have other columns.
    saved: pa.Schema

    def rows(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Convert rows of any of the snapshots' files to the current columns."""
        return self.migration.rows(conform(table, self.saved), schema)


def migration_of(snapshots: list[KeyedStateSnapshot], spec: StateSpec) -> Migrating | None:
    """Return the migration registered for the columns of the snapshots, if there is one."""
    migration = spec.migration if isinstance(spec, RowSpec) else None
    if migration is None or not snapshots:
        return None
    saved = schema_from_text(snapshots[0].schema)
    return Migrating(migration, saved) if is_migrated(saved, spec.segment_schema, migration.was) else None


def fitted(snapshot: KeyedStateSnapshot, spec: StateSpec) -> StateSpec:
    """Return the spec with the field ids of the snapshot's columns.

    Raises:
        StateMismatchError: rows of these columns cannot become those of the spec.
    """
    saved, wanted = schema_from_text(snapshot.schema), spec.segment_schema
    if isinstance(spec, RowSpec | PaneTableSpec) and EVOLVES in (wanted.metadata or {}):
        try:
            found = evolve_state(saved, wanted)
        except StateMismatchError as error:
            msg = f"state {snapshot.state!r} of {snapshot.uid}: {error.message}"
            raise StateMismatchError(msg, hint=error.hint or "give the operator a new uid") from error
        return dataclasses.replace(spec, ids=found.ids, last_id=found.last_id, carried=found.carried)
    if saved.names != wanted.names or saved.types != wanted.types:
        ours = ", ".join(f"{f.name} {f.type}" for f in wanted)
        theirs = ", ".join(f"{f.name} {f.type}" for f in saved)
        raise StateMismatchError(
            f"state {snapshot.state!r} of {snapshot.uid} was saved with columns ({theirs}), the job keeps ({ours})",
            hint="keep keys, aggregates and state types as they were, give a new uid, or start with --fresh",
        )
    try:
        require_same_join(saved, wanted)
        require_same_window(saved, wanted)
    except StateMismatchError as error:
        raise StateMismatchError(
            f"state {snapshot.state!r} of {snapshot.uid}: {error.message}", hint=error.hint
        ) from error
    return spec
