"""The modules that `ps.trigger` and `ps.evictor` name."""

from __future__ import annotations

from penstock.api.windows import evictor, trigger

__all__ = ["evictor", "trigger"]
