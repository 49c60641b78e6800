"""The verdict on one state of a snapshot, as `penstock check` shows it; made by `graph.state_check`."""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["same", "migrates", "new", "dropped", "blocked"]
#: The solution for a blocked state that may be dropped.
ALLOW = "drop its state with --allow-non-restored-state {}"


class StateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one state."""

    uid: str
    #: Empty: the whole operator.
    state: str = ""
    verdict: Verdict
    reason: str = ""
    #: The solution for a blocked state.
    way_out: str = ""

    @property
    def place(self) -> str:
        """Return `uid/state`."""
        return f"{self.uid}/{self.state}" if self.state else self.uid
