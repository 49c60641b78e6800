"""The metrics of a subtask, with Flink's names: written by its thread, read as a complete dictionary by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.clock import Clock
from penstock.core.elements import MIN_TIMESTAMP
from penstock.metrics.registry import MetricGroup

if TYPE_CHECKING:
    from penstock.network.input_gate import InputGate
    from penstock.network.output import ResultPartition
    from penstock.state.memory.budget import MemoryBudget
    from penstock.task.chain.chain import Chain
    from penstock.task.checkpoint.compaction import Compactor
    from penstock.task.drive.waiting_rows import WaitingRows

BUSY, IDLE, BACK_PRESSURED = "busy", "idle", "backPressured"
#: Counters of operators whose totals continue after a restart.
_COUNTED = ("badRecords", "badTimestamps")
#: Interval at which a new dictionary is published.
PUBLICATION_MS = 1000.0
#: Rates that are older belong to the past: the subtask's thread is in one step, or in that of another subtask.
STALE_MS = 5_000.0


class SubtaskMetrics:
    """Owned by one subtask; `latest` may be read from any thread."""

    def __init__(
        self,
        clock: Clock,
        gate: InputGate | None,
        outputs: Sequence[ResultPartition],
        chain: Chain,
        compactor: Compactor,
        memory: MemoryBudget,
    ) -> None:
        """Start counting."""
        self._memory = memory
        self._compactor = compactor
        self._gate = gate
        self._outputs = outputs
        self._chain = chain
        self._group = MetricGroup(clock)
        self._times = self._group.times((BUSY, IDLE, BACK_PRESSURED), IDLE)
        self._in = self._group.meter("numRecordsInPerSecond")
        self._out = self._group.meter("numRecordsOutPerSecond")
        self._marked = (0, 0)
        self.input_watermark = MIN_TIMESTAMP
        self.next_publication_ms = clock.monotonic_ms() + PUBLICATION_MS
        self._published_ms = clock.monotonic_ms()
        self._clock = clock
        #: Rows that wait for their state; None: none ever does.
        self.waiting: WaitingRows | None = None
        self.latest: dict[str, float] = {}
        #: Texts of the operators, published with `latest`.
        self.texts: dict[str, str] = {}

    @property
    def memory_used(self) -> tuple[int, int]:
        """The bytes of managed memory, and of arrived rows that were not taken yet; from any thread."""
        return self._memory.used_bytes, 0 if self._gate is None else self._gate.bytes_queued

    def enter(self, state: str) -> None:
        """Attribute the time from now on to this state."""
        self._times.enter(state)

    def publish_due(self, now_ms: float) -> None:
        """Publish a new dictionary if it is due."""
        if now_ms >= self.next_publication_ms:
            self.next_publication_ms = now_ms + PUBLICATION_MS
            self.publish()

    def publish(self) -> dict[str, float]:
        """Publish and return the values of this moment; those of the end of a subtask are its last ones."""
        self._published_ms = self._clock.monotonic_ms()
        self.latest = self.read()
        return self.latest

    def at(self, now_ms: float) -> dict[str, float]:
        """Return the latest values, without rates that are stale at `now_ms`; from any thread.

        A subtask that publishes nothing takes and emits no rows, and all its time belongs to its present state.
        """
        latest = self.latest
        if now_ms - self._published_ms < STALE_MS:
            return latest
        rates = {name: 0.0 for name in latest if name.endswith("PerSecond")}
        running = self._chain.times.running
        present = {f"{self._times.state}TimeMsPerSecond": 1000.0, f"operator/{running}/busyTimeMsPerSecond": 1000.0}
        return {**latest, **rates, **{name: rate for name, rate in present.items() if name in latest}}

    def at_barrier(self, unprocessed: int) -> dict[str, int]:
        """Publish and return the counters whose totals continue after a restart, those that are not 0.

        `unprocessed`: rows that were read, but come in again after a restart. The subtask's thread.
        """
        counts, latest = self._counts(unprocessed), self.latest
        # the next report must not have less than the ack
        self.latest = latest | {name: max(float(count), latest.get(name, 0.0)) for name, count in counts.items()}
        return counts

    def _counts(self, unprocessed: int) -> dict[str, int]:
        links = self._chain.links
        records_in, records_out = self._rows()
        found = {
            "numRecordsIn": records_in - unprocessed,
            "numRecordsOut": records_out,
            "numLateRecordsDropped": sum(link.metrics.late_records_dropped for link in links),
            **{name: sum(int(link.metrics.extra.get(name, 0)) for link in links) for name in _COUNTED},
        }
        return {name: count for name, count in found.items() if count}

    def _rows(self) -> tuple[int, int]:
        """Return the rows in and out."""
        links = self._chain.links
        records_in = self._gate.records_in if self._gate is not None else links[0].records_out
        records_out = sum(output.records_out for output in self._outputs) if self._outputs else links[-1].records_in
        return records_in, records_out

    def read(self) -> dict[str, float]:
        """Return all values (the subtask's thread); watermarks in milliseconds, as Flink reports them."""
        links = self._chain.links
        records_in, records_out = self._rows()
        self._in.mark(records_in - self._marked[0])
        self._out.mark(records_out - self._marked[1])
        self._marked = (records_in, records_out)
        self.texts = {name: text for link in links for name, text in link.metrics.texts.items()}
        last = self._chain.last_watermark
        own = last if self._outputs else self._chain.watermark_of_last
        values = {
            "numRecordsIn": float(records_in),
            "numRecordsOut": float(records_out),
            "numBytesIn": float(self._gate.bytes_in) if self._gate is not None else 0.0,
            "numBytesOut": float(sum(output.bytes_out for output in self._outputs)),
            "currentInputWatermark": float((self.input_watermark if self._gate is not None else own) // 1000),
            "currentOutputWatermark": float(last // 1000),
            "numLateRecordsDropped": float(sum(link.metrics.late_records_dropped for link in links)),
            **self._group.read(),
            **self._chain.times.read(),
        }
        if self._gate is None and self._chain.last_is_idle:
            values["watermarkIdle"] = 1.0
        if self._gate is not None and self._gate.window is not None:
            values["debloatedBufferSize"] = float(self._gate.window)
            values["inputQueueSize"] = float(self._gate.bytes_queued)
            values["estimatedTimeToConsumeBuffersMs"] = self._gate.queued_ms
        if self._memory.peak_bytes:
            values["managedMemoryUsed"] = float(self._memory.used_bytes)
            values["managedMemoryPeak"] = float(self._memory.peak_bytes)
        if combined := sum(output.records_combined for output in self._outputs):
            values["numRecordsCombined"] = float(combined)
        if self.waiting is not None:
            values["numRecordsAwaitingState"] = float(self.waiting.count)
        hot_keys = links[0].hot_keys  # only the head of a chain has an exchange by key before it
        if hot_keys is not None and hot_keys.share is not None:
            values["hottestKeyShare"] = hot_keys.share
        if self._compactor.completed or self._compactor.failures:
            values["numCompactions"] = float(self._compactor.completed)
            values["numFailedCompactions"] = float(self._compactor.failures)
        files = self._compactor.files
        if files.local_bytes or files.remote_bytes:
            values["numStateBytesReadLocal"] = float(files.local_bytes)
            values["numStateBytesReadRemote"] = float(files.remote_bytes)
        for link in links:
            for name, value in link.metrics.extra.items():
                values[name] = values.get(name, 0.0) + value
        return values
