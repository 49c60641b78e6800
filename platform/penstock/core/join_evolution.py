"""Which other join may go on with the rows of one: what a join has forgotten, only another one may have needed.

A join says in the metadata of its sides' schemas how it pairs rows and for which sides it keeps those that met none.
Called at a restore and by `penstock check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import StateMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

#: In a schema's metadata: how the join pairs rows; the sides (`0`, `1`) whose rows come out alone too.
JOIN, ALONE = b"join", b"alone"


def require_same_join(saved: pa.Schema, wanted: pa.Schema) -> None:
    """Check that the rows of a join's side fit the job's join; of what says nothing of a join nothing is asked.

    Raises:
        StateMismatchError: it is another join, or has outer rows that the saved one has not kept apart.
    """
    had, has = saved.metadata or {}, wanted.metadata or {}
    if JOIN not in had or JOIN not in has:
        return
    if had[JOIN] != has[JOIN]:
        msg = f"it was kept for a join {had[JOIN].decode()}, the job has one {has[JOIN].decode()}"
        raise StateMismatchError(msg, hint="give the operator a new uid")
    if set(has[ALONE]) - set(had[ALONE]):
        msg = "the join had no rows without a partner from a side that now has them, and has forgotten whom they met"
        raise StateMismatchError(msg, hint="give the operator a new uid")
