"""Time-to-live as declared by a job, and as stored in the config of an operator."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError, UsageError
from penstock.state.log.ttl import Ttl, TtlClock

_UPDATE = ("on_create_and_write", "on_read_and_write")
_VISIBILITY = ("never_return_expired", "return_expired_if_not_cleaned_up")


class StateTtlConfig(msgspec.Struct, frozen=True):
    """The time that a key's state lives after its last access, by the machine's clock: `ps.StateTtlConfig("1h")`.

    In lists and maps, each element expires separately. Expired values are removed when their key has rows, for a part
    of all keys after every batch and at every checkpoint, and when segments are merged.
    """

    ttl: str | float
    #: The accesses that restart the time: writing only, or reading too.
    update: Literal["on_create_and_write", "on_read_and_write"] = "on_create_and_write"
    #: Whether an expired value can be read until it is cleaned up.
    visibility: Literal["never_return_expired", "return_expired_if_not_cleaned_up"] = "never_return_expired"


#: A duration, or one with its options.
TimeToLive: TypeAlias = str | float | StateTtlConfig | None


def ttl_options(declared: TimeToLive, where: str) -> dict[str, Any]:
    """Return the config entries of a time-to-live; empty without one.

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
    """Return the same as `ttl_options`, for operators that write state with each row and never let a user read it.

    Raises:
        GraphError: as for `ttl_options`, or an option is given.
    """
    if isinstance(declared, StateTtlConfig) and declared != StateTtlConfig(declared.ttl):
        raise GraphError(f"{where}: its time-to-live takes no options", hint='for example ttl="1h"')
    return ttl_options(declared, where)


def ttl_of(kind: dict[str, Any], clock: TtlClock) -> Ttl | None:
    """Return the time-to-live of a config entry."""
    return Ttl(clock, **kind["ttl"]) if "ttl" in kind else None
