"""Rules for changed joins: whether a join may restore the rows of another one.

The metadata of its sides' schemas says how a join pairs rows, and for which sides it keeps rows without a match. Called
at a restore and by `penstock check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import StateMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

#: Keys of a schema's metadata: how the join pairs rows; the sides (`0`, `1`) whose unmatched rows are emitted too.
JOIN, ALONE = b"join", b"alone"


def require_same_join(saved: pa.Schema, wanted: pa.Schema) -> None:
    """Check that the rows of a join's side fit the job's join; a schema without a join passes.

    Raises:
        StateMismatchError: the join differs, or has outer rows that the saved one did not track.
    """
    had, has = saved.metadata or {}, wanted.metadata or {}
    if JOIN not in had or JOIN not in has:
        return
    if had[JOIN] != has[JOIN]:
        msg = f"it is the state of a join {had[JOIN].decode()}, the job has a join {has[JOIN].decode()}"
        raise StateMismatchError(msg, hint="give the operator a new uid")
    if set(has[ALONE]) - set(had[ALONE]):
        msg = "this side of the join was inner; its state does not record which rows matched, so it cannot become outer"
        raise StateMismatchError(msg, hint="give the operator a new uid")
