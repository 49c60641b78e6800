"""The types of ASGI: what `rest.server.guard` and `rest.server.fast_app` are called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
