"""Time-to-live as a job declares it, and as the config of an operator has it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError, UsageError
from penstock.state.log.ttl import Ttl, TtlClock

_UPDATE = ("on_create_and_write", "on_read_and_write")
_VISIBILITY = ("never_return_expired", "return_expired_if_not_cleaned_up")


class StateTtlConfig(msgspec.Struct, frozen=True):
    """How long a state of a key lives after its last access, by the machine's clock: `ps.StateTtlConfig("1h")`.

    Of lists and maps every element counts by itself. What has expired is removed when its key has rows, a part of all
    keys behind every batch and at every checkpoint, and when segments are merged.
    """

    ttl: str | float
    #: What counts as an access: only writing, or reading too.
    update: Literal["on_create_and_write", "on_read_and_write"] = "on_create_and_write"
    #: Whether what has expired may be read until it is cleaned up.
    visibility: Literal["never_return_expired", "return_expired_if_not_cleaned_up"] = "never_return_expired"


#: A duration, or one with its options.
TimeToLive: TypeAlias = str | float | StateTtlConfig | None


def ttl_options(declared: TimeToLive, where: str) -> dict[str, Any]:
    """Return what an operator's config says of a time-to-live; nothing where there is none.

    Raises:
        GraphError: it is no duration or not positive, or an option is unknown.
    """
    if declared is None:
        return {}
    config = declared if isinstance(declared, StateTtlConfig) else StateTtlConfig(declared)
    try:
        duration_ms = parse_duration_ms(config.ttl, "time-to-live")
    except (UsageError, TypeError) as error:
        raise GraphError(f"{where}: {config.ttl!r} is no time-to-live", hint='write for example ttl="1h"') from error
    if duration_ms <= 0:
        raise GraphError(f"{where}: its time-to-live {config.ttl!r} is not positive", hint='for example ttl="1h"')
    for name, value, known in (("update", config.update, _UPDATE), ("visibility", config.visibility, _VISIBILITY)):
        if value not in known:
            raise GraphError(f"{where}: time-to-live has no {name}={value!r}", hint=f"one of: {', '.join(known)}")
    return {
        "ttl": {
            "duration_us": duration_ms * 1000,
            "on_read": config.update == _UPDATE[1],
            "return_expired": config.visibility == _VISIBILITY[1],
        }
    }


def row_ttl_options(declared: TimeToLive, where: str) -> dict[str, Any]:
    """As `ttl_options`, for operators whose every row is a write and whose state nobody reads.

    Raises:
        GraphError: as there, or an option that means nothing here.
    """
    if isinstance(declared, StateTtlConfig) and declared != StateTtlConfig(declared.ttl):
        raise GraphError(f"{where}: its time-to-live is a duration and no more", hint='for example ttl="1h"')
    return ttl_options(declared, where)


def ttl_of(kind: dict[str, Any], clock: TtlClock) -> Ttl | None:
    """Return the time-to-live that a config speaks of."""
    return Ttl(clock, **kind["ttl"]) if "ttl" in kind else None
