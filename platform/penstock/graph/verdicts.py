"""What becomes of one state of a snapshot in a job, as `penstock check` shows it; made by `graph.state_check`."""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["same", "migrates", "new", "dropped", "blocked"]
#: The way out of a blocked state that may be given up.
ALLOW = "leave what it held behind with --allow-non-restored-state {}"


class StateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one state."""

    uid: str
    #: Empty: all of the operator.
    state: str = ""
    verdict: Verdict
    reason: str = ""
    #: Of a blocked state: what to do.
    way_out: str = ""

    @property
    def place(self) -> str:
        """`uid/state`."""
        return f"{self.uid}/{self.state}" if self.state else self.uid
