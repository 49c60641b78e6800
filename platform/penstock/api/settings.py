"""The keywords of `ps.Environment(...)` as `JobSettings`: durations as `"5s"`, sizes as `"256MB"`, names checked.

Every field of `JobSettings` can be given under its name, or without its `_ms` or `_bytes` suffix as a text with a unit.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_origin

import msgspec

from penstock.config.settings import JobSettings, RestartStrategy, in_range, parse_bytes, parse_duration_ms
from penstock.core.errors import UsageError
from penstock.core.names import near

_FIELDS = JobSettings.__struct_fields__
#: Default folder of checkpoints, below the working directory.
DEFAULT_CHECKPOINTS = ".penstock/checkpoints"


class SettingsKeywords(TypedDict, total=False):
    """Further keywords of `ps.Environment`; the defaults are those of `JobSettings`."""

    key_groups: int
    checkpoint_timeout: str | float
    checkpoint_min_pause: str | float
    checkpoint_max_age: str | float
    checkpoint_tolerated_failures: int
    retained_checkpoints: int
    managed_memory: str | int
    remote_local: str | int
    buffer_timeout: str | float
    buffer_size: str | int
    exclusive_buffers: int
    floating_buffers: int
    sink_pending_max: str | int
    sink_pending_max_epochs: int
    restart: RestartStrategy | str
    requirements: Sequence[str]
    python_path: Sequence[str]


def settings_from(keywords: Mapping[str, Any]) -> JobSettings:
    """Return the settings of these keywords; None means the default.

    Raises:
        UsageError: an unknown keyword (names the nearest), or a value of the wrong type or out of its range.
    """
    fields: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if value is not None:
            fields.update(_field(keyword, value))
    fields["checkpoint_root"] = checkpoint_root(fields.get("checkpoint_root", ""))
    try:
        return in_range(msgspec.convert(fields, JobSettings))
    except msgspec.ValidationError as error:
        for name, kind in typing.get_type_hints(JobSettings).items():
            allowed = get_args(kind) if get_origin(kind) is Literal else ()
            if allowed and fields.get(name, allowed[0]) not in allowed:
                msg = f"ps.Environment: {name}={fields[name]!r} is not known"
                raise UsageError(msg, hint=f"one of {', '.join(allowed)}") from error
        msg = f"ps.Environment: {error}"
        raise UsageError(msg, hint="see the table of settings in the docs") from error


def checkpoint_root(given: str) -> str:
    """Return the root as a URI or an absolute path, so that it is the same place for every process of a cluster."""
    root = given or os.environ.get("PENSTOCK_CHECKPOINT_ROOT", "") or DEFAULT_CHECKPOINTS
    return root if "://" in root else str(Path(root).expanduser().absolute())


def _field(keyword: str, value: Any) -> dict[str, Any]:
    if keyword == "checkpoints":
        keyword = "checkpoint_root"
    if keyword == "restart":
        return {"restart": _restart(value)}
    if keyword in _FIELDS:
        if isinstance(value, Path):
            return {keyword: str(value)}
        return {keyword: tuple(value) if isinstance(value, (list, set)) else value}
    if f"{keyword}_ms" in _FIELDS:
        return {f"{keyword}_ms": parse_duration_ms(value, keyword.replace("_", " "))}
    if f"{keyword}_bytes" in _FIELDS:
        return {f"{keyword}_bytes": parse_bytes(value, keyword.replace("_", " "))}
    msg = f"ps.Environment: unknown setting {keyword!r}"
    raise UsageError(msg, hint=near(keyword, sorted(_names())))


def _names() -> list[str]:
    return ["checkpoints", *(name.removesuffix("_ms").removesuffix("_bytes") for name in _FIELDS)]


def _restart(value: RestartStrategy | str) -> dict[str, Any]:
    plain = {"kind": value} if isinstance(value, str) else msgspec.to_builtins(value)
    try:
        return dict(msgspec.to_builtins(msgspec.convert(plain, RestartStrategy)))
    except msgspec.ValidationError as error:
        msg = f"ps.Environment: restart={value!r}: {error}"
        raise UsageError(msg, hint="use 'fixed-delay', 'exponential-delay', 'failure-rate', 'none'") from error
