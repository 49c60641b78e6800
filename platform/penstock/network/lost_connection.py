"""The error of gates and outputs whose other end is gone."""

from __future__ import annotations

from penstock.core.errors import PenstockError


class ConnectionLostError(PenstockError):
    """The other end of a channel is gone; the task must fail, rows may be lost on the way."""
