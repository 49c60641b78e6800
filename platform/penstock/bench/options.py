"""How a benchmark is to be run: what the command line says, as one value that travels to the job's process."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from penstock.config.settings import JobSettings, with_overrides
from penstock.core.errors import UsageError

_DEFAULT_INTERVAL_MS = 1000
_MAX_EVENTS = 1 << 31
_MAX_PARALLELISM = 1024
_MAX_PAIRS = 100
#: As many as the events' generator tells apart.
_MAX_KEYS = 1 << 28
#: Of jobs whose delays are measured.
BUFFER_TIMEOUT = "10ms"


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every workload; one leaves out what means nothing to it."""

    #: None: the workload's own size.
    events: int | None = None
    parallelism: int = 2
    #: Milliseconds between checkpoints; None: only the one at the end; unset: the workload's own.
    checkpoint_interval_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    #: Type of the key column.
    keys: Literal["int", "string"] = "int"
    #: Key and amount may be null, and some are.
    nullable: bool = False
    #: Number of keys of w2 and w2x; None: the workload's own.
    key_count: int | None = None
    #: Folder of other engines set up for the same workloads; they then run in the same invocation.
    peers: str | None = None
    #: How often the job runs both with and without checkpoints, in turn; 0: once, as the other options say.
    pairs: int = 0
    #: Run at full speed, then at half of that rate, and say how late results are.
    latency: bool = False
    #: Set for each of these two runs: rows a second (0: full speed); None: sources and sinks take no notes of delays.
    rate: float | None = None
    #: Rows due within so many milliseconds of the first one are not counted.
    settle_ms: float = 0.0
    #: Kafka broker of the workloads and peers that need one.
    bootstrap: str | None = None
    #: Settings of the job by name.
    settings: dict[str, str] = {}

    def events_or(self, default: int) -> int:
        """Return the number of events asked for, else the workload's own."""
        return default if self.events is None else self.events

    @property
    def managed_memory_bytes(self) -> int:
        """Memory for state that a slot of the job has."""
        return with_overrides(JobSettings(), self.settings).managed_memory_bytes

    @property
    def interval_ms(self) -> int | None:
        """Milliseconds between checkpoints; None: only the one at the end."""
        return _DEFAULT_INTERVAL_MS if self.checkpoint_interval_ms is msgspec.UNSET else self.checkpoint_interval_ms

    def with_interval(self, milliseconds: int) -> Self:
        """Return the options with a workload's own interval of checkpoints, where none was asked for."""
        if self.checkpoint_interval_ms is not msgspec.UNSET:
            return self
        return msgspec.structs.replace(self, checkpoint_interval_ms=milliseconds)

    def refuse_variants(self, workload: str, *, strings: bool = False) -> None:
        """Refuse what only some workloads have: nullable columns, and string keys unless `strings`.

        Raises:
            UsageError: one of them was asked for.
        """
        if self.nullable or (self.keys != "int" and not strings):
            hint = "--keys string and --nullable are variants of w1 and w1s"
            raise UsageError(f"{workload} has no such variant", hint=hint)

    def check(self) -> None:
        """Refuse sizes that make no sense, and settings there are not.

        Raises:
            UsageError: one of them does.
        """
        for name, value, limit in (
            ("--events", self.events_or(1), _MAX_EVENTS),
            ("--key-count", 1 if self.key_count is None else self.key_count, _MAX_KEYS),
            ("--parallelism", self.parallelism, _MAX_PARALLELISM),
            ("--checkpoint-interval", 1 if self.interval_ms is None else self.interval_ms, 86_400_000),
        ):
            if not 1 <= value <= limit:
                msg = f"{name} must be from 1 to {limit}, not {value}"
                raise UsageError(msg, hint="leave it out for the default")
        if self.keys not in ("int", "string"):
            msg = f"--keys {self.keys!r} is not a type of key"
            raise UsageError(msg, hint="use int or string")
        if not 0 <= self.pairs <= _MAX_PAIRS:
            msg = f"--pairs must be from 0 to {_MAX_PAIRS}, not {self.pairs}"
            raise UsageError(msg, hint="three to seven pairs show a few percent")
        if self.pairs and self.checkpoint_interval_ms is None:
            raise UsageError("--pairs with --no-checkpoints has nothing to compare", hint="leave one of them out")
        if self.pairs and self.peers is not None:
            raise UsageError("--pairs and --peers are two questions", hint="ask them one after the other")
        if self.latency and (self.pairs or self.peers is not None):
            raise UsageError("--latency is a question of its own", hint="ask for --pairs and --peers without it")
        if self.peers is not None and (self.keys != "int" or self.nullable or self.key_count is not None):
            hint = "--peers goes with integer keys that are never null, as many as the workload has"
            raise UsageError("the peers have no such variant", hint=hint)

        with_overrides(JobSettings(), self.settings)
