"""A sink that keeps a checksum of the rows instead of the rows, exactly once.

What an epoch added is prepared with the checkpoint and published under its permit as one small file, named by its
committable: after any number of restarts the files' sum is that of every row once. Two forms (`ChecksumSink.form`):

`windows`: columns (key, window end, count, sum), only windows that end by `cut_us` count; the check adds
((key * 31 + (window end - T0) div `unit_us` * 17 + count) * (sum + 7)) mod 1,000,000,007.
`rows`: columns (key, a, b, c); the sums are those of a and b, the check adds (key * 31 + c) mod the prime. A timestamp
counts as milliseconds since T0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from penstock.connector.sink import CommitOutcome, SinkSpec
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import Committable
from penstock.core.views import plain_schema
from penstock_lab.workloads.checksum_config import Config, Form
from penstock_lab.workloads.marks import DUE, WINDOW_END, Published, Timed, first_result, published

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.sink import FileReader, SinkContext
    from penstock.core.permits import CommitPermit
    from penstock_lab.workloads.checksum import Checksum
    from penstock_lab.workloads.delays import DelayRecorder

_FACTORY = "penstock_lab.workloads.sink:ChecksumSinkFactory"
_EVERY_WINDOW = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class ChecksumSink:
    """Adds rows to a checksum; `folder` receives the published sums (`read_marks` reads it)."""

    #: Needs plain texts only for keys, and converts them itself.
    takes_views: ClassVar[bool] = True

    folder: str
    form: Form
    #: Four column names; see the module's docstring.
    columns: tuple[str, ...]
    unit_us: int = 10_000_000
    cut_us: int = _EVERY_WINDOW
    #: Record delays of results (`delays`): of rows with a column `due`, or of windows with a column `window_end`.
    timed: Timed = ""
    #: Rows due within this many milliseconds of the first one are not counted.
    settle_ms: float = 0.0

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink as a value.

        Raises:
            GraphError: an unknown form, or columns that do not exist.
        """
        missing = [name for name in self.columns if name not in input_schema.names]
        if self.form not in ("windows", "rows") or len(self.columns) != 4 or missing:
            msg = f"ChecksumSink: form {self.form!r} cannot be made of columns {', '.join(self.columns)}"
            raise GraphError(msg, hint=f"four of {', '.join(input_schema.names)}; form 'windows' or 'rows'")
        needed = DUE if self.timed == "rows" else WINDOW_END
        if self.timed and needed not in input_schema.names:
            msg = f"ChecksumSink: there is no column `{needed}` from which to compute delays"
            raise GraphError(msg, hint=f"columns: {', '.join(input_schema.names)}")
        config = Config(
            folder=self.folder, form=self.form, columns=self.columns, unit_us=self.unit_us, cut_us=self.cut_us,
            timed=self.timed, settle_ms=self.settle_ms,
        )  # fmt: skip
        return SinkSpec(
            factory=_FACTORY,
            config=msgspec.to_builtins(config),
            delivery="exactly-once-2pc",
            schema=schema_to_text(plain_schema(input_schema, self.columns)),
            preload=["penstock_lab.workloads.kernels"],
        )


class ChecksumSinkFactory:
    """Makes writer and committer from the spec."""

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> ChecksumWriter:
        """Return the writer of one subtask."""
        from penstock_lab.workloads.checksum import Checksum
        from penstock_lab.workloads.delays import DelayRecorder

        config = msgspec.convert(spec.config, Config)
        delays = DelayRecorder(config.timed, config.settle_ms, context.clock) if config.timed else None
        return ChecksumWriter(Checksum(config), delays, config.folder, context)

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> ChecksumCommitter:
        """Return the committer of one subtask."""
        return ChecksumCommitter(msgspec.convert(spec.config, Config), context)

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        """Check the config's form; the folder belongs to the benchmark."""
        del checkpoint_interval_ms
        msgspec.convert(spec.config, Config)


class ChecksumWriter:
    """Adds up one epoch after another."""

    def __init__(self, checksum: Checksum, delays: DelayRecorder | None, folder: str, context: SinkContext) -> None:
        self._checksum = checksum
        self._delays = delays
        self._folder = folder
        self._context = context
        self._began = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if not self._began and batch.num_rows:
            self._began = True
            first_result(self._folder, self._context.subtask, self._context.clock.now_ms())
        if self._delays is not None:
            self._delays.add(batch)
        self._checksum.add(batch)

    def prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Return the sums of the epoch; the checkpoint makes them durable."""
        sums = self._checksum.take()
        if not sums[0]:
            return ()
        context = self._context
        return (
            Committable(
                id=f"{context.uid}/{context.run_id}/{context.subtask}/{checkpoint_id}",
                uid=context.uid,
                run_id=context.run_id,
                subtask=context.subtask,
                checkpoint_id=checkpoint_id,
                transactional_id=context.transactional_id,
                marker_group=context.transactional_id,
                rows=sums[0],
                created_ms=context.clock.now_ms(),
                detail={"sums": sums},
            ),
        )

    def close(self) -> None:
        """Write the recorded delays."""
        delays, self._delays = self._delays, None
        if delays is not None:
            delays.leave(self._folder, self._context.subtask)


class ChecksumCommitter:
    """Publishes the sums of epochs, from any process and repeatedly."""

    def __init__(self, config: Config, context: SinkContext) -> None:
        self._folder = config.folder
        self._clock = context.clock

    def commit(
        self, permit: CommitPermit, committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Publish."""
        del permit, read  # only the existence of the permit matters; the sums travel in the committable
        outcomes = []
        for committable in committables:
            content = Published(
                subtask=committable.subtask, at_ms=self._clock.now_ms(), sums=tuple(committable.detail["sums"])
            )
            fresh = published(self._folder, committable.id, content)
            outcomes.append(
                CommitOutcome(committable.id, "published" if fresh else "already-published", committable.rows)
            )
        return tuple(outcomes)

    def recover(
        self, permit: CommitPermit, prefixes: tuple[str, ...], committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Publish pending output; a late writer of the same committable finds its file in place."""
        del prefixes
        return self.commit(permit, committables, read)

    def close(self) -> None:
        """Do nothing."""
