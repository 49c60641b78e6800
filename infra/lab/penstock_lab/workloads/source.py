"""Events by formula as a source: `WorkloadSource` for the benchmarks, its factory and reader for the runtime.

Split s of n holds the events s, s + n, s + 2n ... The reader continues its split with the fewest rows, so that event
times advance together. A position is the number of rows of a split that were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.core.structs import prepare
from penstock_connectors.generated import SplitEnumerator
from penstock_lab.workloads import marks

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.source import SourceContext

KeyType = Literal["int", "string"]

_FACTORY = "penstock_lab.workloads.source:WorkloadSourceFactory"
_MAX_EVENTS = 1 << 31
_MAX_KEYS = 1 << 28
_MAX_TEXT_KEYS = 10_000_000


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SourceSpec.config`."""

    events: int
    keys: int
    splits: int
    key_type: KeyType
    nullable: bool
    batch_rows: int
    marks: str
    skewed: bool = False

    def rows_of(self, split: int) -> int:
        """Return the rows of one split: an even share, the remainder to the first splits."""
        share, rest = divmod(self.events, self.splits)
        return share + (1 if split < rest else 0)


prepare(_Config)


@dataclass(frozen=True, kw_only=True)
class WorkloadSource:
    """Events (`user_id`, `amount`, `ts`): 100 a millisecond of event time, out of order by less than 5 s."""

    events: int
    keys: int = 100_000
    splits: int = 2
    #: `string` spells the key as a letter and seven digits.
    key_type: KeyType = "int"
    #: Columns may be null: `amount` is for every tenth amount, `user_id` for key 0.
    nullable: bool = False
    #: The most rows of one batch.
    batch_rows: int = 1 << 20
    #: Folder in which the time of the first row is recorded.
    marks: str = ""
    #: Few keys have most of the events: the second has a third of the first one's.
    skewed: bool = False

    @property
    def row_schema(self) -> pa.Schema:
        """Return the schema of the events."""
        import pyarrow as pa

        key = pa.string() if self.key_type == "string" else pa.int64()
        return pa.schema(
            [
                pa.field("user_id", key, nullable=self.nullable),
                pa.field("amount", pa.int64(), nullable=self.nullable),
                pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
            ]
        )

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: a number is out of range.
        """
        limits = {"events": _MAX_EVENTS, "keys": _MAX_KEYS, "splits": 1 << 15, "batch_rows": 1 << 24}
        if self.key_type == "string":
            limits["keys"] = min(_MAX_KEYS, _MAX_TEXT_KEYS)
        for name, limit in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                msg = f"WorkloadSource: {name} must be from 1 to {limit}, not {value}"
                raise GraphError(msg, hint="the formula of the events is exact in this range")
        config = _Config(
            events=self.events, keys=self.keys, splits=self.splits, key_type=self.key_type, nullable=self.nullable,
            batch_rows=self.batch_rows, marks=self.marks, skewed=self.skewed,
        )  # fmt: skip
        return SourceSpec(
            factory=_FACTORY,
            config=msgspec.to_builtins(config),
            schema=schema_to_text(self.row_schema),
            bounded=True,
            preload=["penstock_lab.workloads.kernels"],
        )


class WorkloadSourceFactory:
    """Makes enumerator and reader from the spec."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator; the splits are the same in every run."""
        del first_run
        return SplitEnumerator("events", msgspec.convert(spec.config, _Config).splits)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> WorkloadReader:
        """Return a reader for one subtask."""
        return WorkloadReader(msgspec.convert(spec.config, _Config), context)

    def validate(self, spec: SourceSpec) -> None:
        """Check the config's form; there is no outside system."""
        msgspec.convert(spec.config, _Config)


@dataclass(slots=True)
class _Progress:
    id: str
    index: int
    position: int
    end: int
    finished: bool
    paused: bool = False


class WorkloadReader:
    """Makes the events of its splits, one batch of one split per poll."""

    def __init__(self, config: _Config, context: SourceContext) -> None:
        from penstock_lab.workloads.events import EventMaker

        self._config = config
        self._context = context
        text = config.key_type == "string"
        self._maker = EventMaker(config.keys, config.splits, text=text, nullable=config.nullable, skewed=config.skewed)
        self._splits: dict[str, _Progress] = {}
        self._marked = not config.marks

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start from the splits' positions."""
        for split in splits:
            state: dict[str, Any] = split.state
            index = int(state["index"])
            self._splits[split.id] = _Progress(
                split.id, index, int(state["position"]), self._config.rows_of(index), split.finished
            )

    def poll(self, max_rows: int) -> PollResult:
        """Make the next batch of the split with the fewest rows."""
        active = [progress for progress in self._splits.values() if not (progress.finished or progress.paused)]
        if not active:
            return PollResult()
        if not self._marked:
            self._marked = True
            marks.first_record(self._config.marks, self._context.subtask, self._context.clock.now_ms())
        progress = min(active, key=lambda p: p.position)
        count = min(max_rows, self._config.batch_rows, progress.end - progress.position)
        batches: tuple[SourceBatch, ...] = ()
        if count:
            batches = (SourceBatch(self._maker.make(progress.index, progress.position, count), (progress.id,)),)
            progress.position += count
        progress.finished = progress.position >= progress.end
        return PollResult(batches, (progress.id,) if progress.finished else ())

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Pause some splits."""
        for split_id in (*pause, *resume):
            self._splits[split_id].paused = split_id in pause

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return every split with its position."""
        return tuple(
            SourceSplit(id=p.id, state={"index": p.index, "position": p.position}, finished=p.finished)
            for p in self._splits.values()
        )

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Do nothing: no outside system needs it."""

    def close(self) -> None:
        """Do nothing."""
