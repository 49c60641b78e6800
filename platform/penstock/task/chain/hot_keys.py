"""The keys of a keyed operator with the most rows, estimated from a uniform sample of its input.

Kept by the links of `task.chain.chain`, read by the queries and metrics of `task.drive`. Of every k rows of an input a
random one selects its batch, of which some rows are counted, so a batch is weighted by its rows. The numbers are
estimates of rows, with decreasing weight for those older than a minute.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.kernels.keys.key_text import json_value
from penstock.metrics.top_keys import TopKeys
from penstock.operators.aggregates.combine import cells_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.core.elements import Batch

#: In this time about this many rows of an input are counted, some per batch: in all 0.5 % of a core at a million rows a
#: second in batches of 4096.
SAMPLE_INTERVAL_MS = 500.0
SAMPLE_ROWS = 128
_ROWS_PER_SAMPLE = 32
#: Keys that are counted, and keys that are reported.
KEPT_KEYS, SHOWN_KEYS = 256, 20
#: Half-life of counts.
HALF_LIFE_MS = 60_000.0
#: Interval of decay.
_DECAY_MS = 5_000.0


class _RowSampler:
    """Draws a random one of every k rows of one input; k follows the rate."""

    def __init__(self, seed: int) -> None:
        self._state = seed
        self.period = 1
        #: Rows so far of the current k, and the index of the drawn one.
        self._rows_in_period = self._sampled_index = 0
        self._began_ms = self._seen = self._examined = 0.0

    def begin(self, now: float) -> None:
        """Recompute k from the rate since the last change, at most once per interval."""
        passed = now - self._began_ms
        if passed >= SAMPLE_INTERVAL_MS:
            self._restart(int(self._seen * SAMPLE_INTERVAL_MS / passed) * _ROWS_PER_SAMPLE // SAMPLE_ROWS)
            self._began_ms, self._seen, self._examined = now, 0.0, 0.0

    def hits(self, rows: int) -> int:
        """Return the number of drawn rows among the next rows."""
        self._seen += rows
        begun, end = self._rows_in_period, self._rows_in_period + rows
        full, self._rows_in_period = divmod(end, self.period)
        if not full:
            return int(begun <= self._sampled_index < end)
        found = int(begun <= self._sampled_index) + full - 1
        self._sampled_index = self.chance(self.period)
        return found + int(self._sampled_index < self._rows_in_period)

    def examined(self, rows: int) -> None:
        """Count examined rows; draw fewer if the rate has increased."""
        self._examined += rows
        if self._examined > SAMPLE_ROWS:
            self._examined = 0.0
            self._restart(2 * self.period)

    def chance(self, below: int) -> int:
        """Return a number from 0 to `below` - 1, uniformly; the sequence is the same in every run."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) % below

    def _restart(self, period: int) -> None:
        self.period = max(1, period)
        self._rows_in_period, self._sampled_index = 0, self.chance(self.period)


class HotKeys:
    """The heavy keys of one operator of one subtask; all calls in the subtask's thread."""

    def __init__(self, config: Mapping[str, Any], clock: Clock) -> None:
        """`config` is the operator's: it names the key columns of its inputs."""
        self._keys = keys_of(config)
        self._samplers = tuple(_RowSampler(number) for number in range(len(self._keys)))
        self._clock = clock
        self._top: TopKeys[tuple[Any, ...]] = TopKeys(KEPT_KEYS)
        self._decayed_ms = clock.monotonic_ms()

    def observe(self, batch: Batch, input_index: int) -> None:
        """Process a batch of input; count some of its rows if one of them is drawn."""
        index = min(input_index, len(self._keys) - 1)
        names, sampler, rows = self._keys[index], self._samplers[index], batch.data.num_rows
        if not names:
            return  # a broadcast stream: its rows have no key
        now = self._clock.monotonic_ms()
        sampler.begin(now)
        hits = sampler.hits(rows)
        if hits:
            if now >= self._decayed_ms + _DECAY_MS:
                self._decay(now)
            weight = float(hits * sampler.period)
            sampler.examined(self._count_rows(batch, names, weight, sampler))

    def hottest(self) -> dict[str, Any]:
        """Return about the number of rows, and the keys with most of them: JSON values, too low by at most `error`."""
        self._decay(self._clock.monotonic_ms())
        names = next((names for names in self._keys if names), ())
        found = self._top.top(SHOWN_KEYS)
        return {
            "rows": self._top.total,
            "error": self._top.error,
            "keys": [
                {"key": {n: json_value(v) for n, v in zip(names, key, strict=True)}, "rows": weight}
                for key, weight in found
            ],
        }

    @property
    def share(self) -> float | None:
        """About the hottest key's part of the rows, 0 to 1; None without rows."""
        return self._top.heaviest / self._top.total if self._top.total else None

    def _decay(self, now: float) -> None:
        self._top.decay(0.5 ** ((now - self._decayed_ms) / HALF_LIFE_MS))
        self._decayed_ms = now

    def _count_rows(self, batch: Batch, names: tuple[str, ...], weight: float, sampler: _RowSampler) -> int:
        """Count some rows of a batch, with a total weight of `weight`; return their number."""
        data = batch.data
        most = int(min(data.num_rows, SAMPLE_ROWS, _ROWS_PER_SAMPLE * weight / sampler.period))
        columns = [data.column(name) for name in names]
        chosen: slice | np.ndarray[Any, Any] = slice(None)
        if most < data.num_rows:
            step = data.num_rows / most
            chosen = (np.arange(most) * step + sampler.chance(1 << 20) / (1 << 20) * step).astype(np.int64)
            columns = [column.take(pa.array(chosen)) for column in columns]
        keys = zip(*(column.to_pylist() for column in columns), strict=True)
        counts: Counter[tuple[Any, ...]] = Counter()
        if batch.combined:  # a combined row represents all rows of its batch, key and pane
            for key, words in zip(keys, cells_of(data)[chosen], strict=True):
                counts[key] += int(words[0]) >> 1
        else:
            counts.update(keys)
        self._top.add({key: count * weight / most for key, count in counts.items()})
        return most


def keys_of(config: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the key columns of each input."""
    first, second = ("left_key", "right_key") if "left_key" in config else ("key", "second_key")
    keys = (tuple(config.get(first) or ()),)
    return (*keys, tuple(config[second] or ())) if second in config else keys
