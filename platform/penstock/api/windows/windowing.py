"""The modules behind the names `ps.trigger` and `ps.evictor`."""

from __future__ import annotations

from penstock.api.windows import evictor, trigger

__all__ = ["evictor", "trigger"]
