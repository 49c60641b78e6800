"""Sink SPI: a value in the job graph, a writer in each sink subtask, a committer that publishes under a permit.

Delivery modes: `exactly-once` (staged: rows are written with the checkpoint, published once its manifest exists),
`exactly-once-2pc` (the open transaction is the prepared state), `at-least-once`, `none`. Called by
`penstock.operators.sinks.sink_operator` (writer, committer) and `penstock.task.checkpoint.sink_recovery` (committer
before a deployment).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from penstock.core.snapshot import Committable, FileRef
from penstock.core.structs import prepare

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.core.permits import CommitPermit

Delivery = Literal["exactly-once", "exactly-once-2pc", "at-least-once", "none"]


class SinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as a value: `factory` is `module:attribute` of a `SinkFactory`.

    `config` is JSON-able and holds no secret.
    """

    factory: str
    config: dict[str, Any]
    delivery: Delivery
    #: Schema of the rows it receives, as text, without `__ts`.
    schema: str
    #: Modules the workers' template imports before it forks, so that workers start at once; none may start a thread.
    preload: list[str] = []
    #: The target for messages: `topic totals at broker:9092`.
    place: str = ""

    @property
    def target(self) -> str:
        """Return the place, or the class that writes if the place is not known."""
        return self.place or self.factory


prepare(SinkSpec)


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The identity of the writing subtask: names for transactional ids (`<job>.<uid>.<run>.<subtask>`) and files."""

    job_name: str
    uid: str
    run_id: str
    subtask: int
    parallelism: int
    attempt: int
    clock: Clock

    @property
    def transactional_id(self) -> str:
        """Return the staged transactional id of this subtask and run; also its marker group."""
        return f"{self.job_name}.{self.uid}.{self.run_id}.{self.subtask}"


class SinkWriter(Protocol):
    """Writes one epoch after another; used by the subtask's thread.

    Staged sinks have no writer: the sink operator stages.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows (without `__ts`); pass them to the outside system or its client's buffer."""

    def prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Flush; when it returns, all written rows are safe until the commit. At-least-once returns ()."""

    def close(self) -> None:
        """Free everything without committing or aborting prepared output; idempotent."""


#: Outcome of one committable.
Resolution = Literal["published", "already-published", "discarded"]


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The outcome of one committable."""

    committable_id: str
    resolution: Resolution
    rows: int


#: Reads the bytes of a staged file, verified against its checksum.
FileReader = Callable[[FileRef], bytes]


class Committer(Protocol):
    """Publishes committables; may be called in any process.

    Calls block; they run in a committer thread, never in the subtask's.
    """

    def commit(
        self, permit: CommitPermit, committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Publish in (checkpoint id, chunk) order; idempotent by the marker.

        Raises:
            LostTransactionError, UndecidedOutputError: with the exact records.
        """

    def recover(
        self, permit: CommitPermit, prefixes: tuple[str, ...], committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Fence and publish before the subtasks are deployed.

        Fence every transactional id under `prefixes`, read the markers, publish the uncommitted output.

        `permit.checkpoint_id` is the restored checkpoint; transactions of later checkpoints are aborted.
        """

    def close(self) -> None:
        """Free everything."""


class SinkFactory(Protocol):
    """Creates writers and committers; made from `SinkSpec.factory` without arguments."""

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> SinkWriter | None:
        """Return the writer, or None for staged delivery."""

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> Committer | None:
        """Return the committer, or None if the delivery mode has nothing to commit."""

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        """Check all that is possible before the job starts (topic exists, transaction time-out fits).

        Raises:
            ConnectorError: with a hint to the solution.
        """


#: A class with one of these is a connector; any other attribute that a graph names is not called.
_OF_A_FACTORY = ("create_reader", "create_writer")


def load_factory(path: str) -> Any:
    """Return a new instance of `module:attribute`; only module paths are loaded, nothing is unpickled.

    Raises:
        ConnectorError: no such module or attribute.
    """
    import importlib

    from penstock.core.errors import ConnectorError, extra_hint

    module_name, _, attribute = path.partition(":")
    try:
        # one package after another: subtask threads that import two modules of a package that imports both would
        # deadlock
        parts = module_name.split(".")
        for end in range(1, len(parts)):
            importlib.import_module(".".join(parts[:end]))
        kind = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        msg = f"connector {path!r} cannot be loaded: {error}"
        raise ConnectorError(msg, hint=f"install the package it needs; for Kafka: {extra_hint('kafka')}") from error
    if not isinstance(kind, type) or not any(hasattr(kind, method) for method in _OF_A_FACTORY):
        raise ConnectorError(f"{path!r} is not a connector", hint="name the class of a SourceFactory or a SinkFactory")
    return kind()
