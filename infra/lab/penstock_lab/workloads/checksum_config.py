"""The config of the checksum sink, as `SinkSpec.config` has it."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.core.structs import prepare
from penstock_lab.workloads.marks import Timed

Form = Literal["windows", "rows"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SinkSpec.config`."""

    folder: str
    form: Form
    columns: tuple[str, ...]
    unit_us: int
    cut_us: int
    timed: Timed = ""
    settle_ms: float = 0.0


prepare(Config)
