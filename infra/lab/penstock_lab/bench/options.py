"""The options of a benchmark from the command line, as one value that travels to the job's process."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from penstock.config.settings import JobSettings, with_overrides
from penstock.core.errors import UsageError

_DEFAULT_INTERVAL_MS = 1000
_MAX_EVENTS = 1 << 31
_MAX_PARALLELISM = 1024
_MAX_PAIRS = 100
#: The number of keys that the events' generator distinguishes.
_MAX_KEYS = 1 << 28
#: Buffer time-out of jobs whose delays are measured.
BUFFER_TIMEOUT = "10ms"


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every workload; a workload ignores those that do not apply."""

    #: None: the workload's own size.
    events: int | None = None
    parallelism: int = 2
    #: Milliseconds between checkpoints; None: only the one at the end; unset: the workload's own.
    checkpoint_interval_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    #: Type of the key column.
    keys: Literal["int", "string"] = "int"
    #: Key and amount may be null, and some are null.
    nullable: bool = False
    #: Number of keys of w2 and w2x; None: the workload's own.
    key_count: int | None = None
    #: Folder of other engines set up for the same workloads; they then run in the same invocation.
    peers: str | None = None
    #: Number of pairs of runs with and without checkpoints, in turn; 0: one run, with the other options.
    pairs: int = 0
    #: Run at full speed, then at half of that rate, and report the delay of results.
    latency: bool = False
    #: Set for each of these two runs: rows per second (0: full speed); None: sources and sinks record no delays.
    rate: float | None = None
    #: Rows due within this many milliseconds of the first one are not counted.
    settle_ms: float = 0.0
    #: Kafka broker of the workloads and peers that need one.
    bootstrap: str | None = None
    #: Settings of the job by name.
    settings: dict[str, str] = {}

    def events_or(self, default: int) -> int:
        """Return the requested number of events, else the workload's own."""
        return default if self.events is None else self.events

    @property
    def managed_memory_bytes(self) -> int:
        """Return the memory for state of a slot of the job."""
        return with_overrides(JobSettings(), self.settings).managed_bytes

    @property
    def interval_ms(self) -> int | None:
        """Return the milliseconds between checkpoints; None: only the one at the end."""
        return _DEFAULT_INTERVAL_MS if self.checkpoint_interval_ms is msgspec.UNSET else self.checkpoint_interval_ms

    def with_interval(self, milliseconds: int) -> Self:
        """Return the options with a workload's own checkpoint interval, if none was requested."""
        if self.checkpoint_interval_ms is not msgspec.UNSET:
            return self
        return msgspec.structs.replace(self, checkpoint_interval_ms=milliseconds)

    def refuse_variants(self, workload: str, *, strings: bool = False) -> None:
        """Refuse options that only some workloads have: nullable columns, and string keys unless `strings`.

        Raises:
            UsageError: one of them was requested.
        """
        if self.nullable or (self.keys != "int" and not strings):
            hint = "--keys string and --nullable are variants of w1 and w1s"
            raise UsageError(f"{workload} has no such variant", hint=hint)

    def check(self) -> None:
        """Refuse sizes out of range and unknown settings.

        Raises:
            UsageError: there is one.
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
            raise UsageError("--pairs and --peers cannot be combined", hint="ask them one after the other")
        if self.latency and (self.pairs or self.peers is not None):
            raise UsageError(
                "--latency cannot be combined with --pairs or --peers", hint="ask for --pairs and --peers without it"
            )
        if self.peers is not None and (self.keys != "int" or self.nullable or self.key_count is not None):
            hint = "--peers needs integer keys that are never null, and the workload's own number of keys"
            raise UsageError("the peers have no such variant", hint=hint)

        with_overrides(JobSettings(), self.settings)
