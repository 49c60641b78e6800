"""Which keys of a keyed operator have the most rows: a few rows of a batch are looked at, some times a second.

Kept by the links of `task.chain`, read by `task.questions`. A sampled row stands for all that came since the last
sample, so the figures are estimates of rows, with less and less weight for what is older than a minute.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.metrics.top_keys import TopKeys
from penstock.operators.combine import cells_of
from penstock.state.key_text import json_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.core.elements import Batch

#: A sample is taken at most this often, and is of at most so many rows: together about 0.05 % of a core.
EVERY_MS = 500.0
SAMPLE_ROWS = 128
#: Keys that are counted, and how many of them are shown.
KEPT_KEYS, SHOWN_KEYS = 256, 20
#: What was counted weighs half as much after so long.
HALF_LIFE_MS = 60_000.0
#: That is reckoned up this often.
_FADE_MS = 5_000.0


class HotKeys:
    """The heavy keys of one operator of one subtask; all calls in the subtask's thread."""

    def __init__(self, config: Mapping[str, Any], clock: Clock) -> None:
        """`config` is the operator's: it names the key columns of its inputs."""
        self._keys = _keys_of(config)
        self._clock = clock
        self._top: TopKeys[tuple[Any, ...]] = TopKeys(KEPT_KEYS)
        self._next_ms = 0.0
        self._faded_ms = clock.monotonic_ms()
        #: Rows since the last sample.
        self._rows = 0
        self._samples = 0

    def see(self, batch: Batch, input_index: int) -> None:
        """Rows come in; look at some of them when it is time."""
        self._rows += batch.data.num_rows
        now = self._clock.monotonic_ms()
        if now >= self._next_ms:
            self._next_ms = now + EVERY_MS
            if now >= self._faded_ms + _FADE_MS:
                self._fade(now)
            self._sample(batch, self._keys[min(input_index, len(self._keys) - 1)])

    def hottest(self) -> dict[str, Any]:
        """Return the rows that were counted, and the keys with most of them, as JSON values."""
        self._fade(self._clock.monotonic_ms())
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

    def _fade(self, now: float) -> None:
        self._top.fade(0.5 ** ((now - self._faded_ms) / HALF_LIFE_MS))
        self._faded_ms = now

    def _sample(self, batch: Batch, names: tuple[str, ...]) -> None:
        if not names:
            return  # a broadcast stream: its rows belong to no key
        data, self._samples = batch.data, self._samples + 1
        step = -(-data.num_rows // SAMPLE_ROWS)
        chosen = pa.array(np.arange(self._samples % step, data.num_rows, step))
        keys = zip(*(data.column(name).take(chosen).to_pylist() for name in names), strict=True)
        scale = self._rows / len(chosen)
        self._rows = 0
        counts: Counter[tuple[Any, ...]] = Counter()
        if batch.combined:  # a row stands for all that one batch had of its key and pane
            for key, words in zip(keys, cells_of(data)[chosen.to_numpy()], strict=True):
                counts[key] += int(words[0]) >> 1
        else:
            counts.update(keys)
        self._top.add({key: count * scale for key, count in counts.items()})


def _keys_of(config: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the key columns of each input."""
    first, second = ("left_key", "right_key") if "left_key" in config else ("key", "second_key")
    keys = (tuple(config.get(first) or ()),)
    return (*keys, tuple(config[second] or ())) if second in config else keys
