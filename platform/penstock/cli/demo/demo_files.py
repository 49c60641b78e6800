"""The demo with the embedded default: an order generator, the same job, files as output; only Python is needed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock as ps
from penstock.cli.demo.demo_scenario import (
    DISORDER_SECONDS,
    PARALLELISM,
    WINDOW_SECONDS,
    OutputRow,
    Windows,
    expected_windows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SPLITS = 4
_USERS = 1_000
_MAX_AMOUNT = 1_000
_START_US = 1_700_000_000_000_000
_ORDERS_PER_EVENT_SECOND = 5_000
_RATE_PER_SECOND = 150_000


class Order(ps.Schema):
    """An order."""

    user_id: int
    amount: int
    ts: datetime


class FilesScenario:
    """Orders from a generator in four splits; totals as Parquet files in a folder."""

    def __init__(self, folder: Path, events: int) -> None:
        """Use `folder` for output and checkpoints."""
        self.events = events
        self.environment: dict[str, str] = {}
        self._folder = folder

    def prepare(self) -> None:
        """Do nothing: no server is needed."""

    def build(self) -> ps.Environment:
        """Return the nine-line job, from a generator to files."""
        from penstock_connectors.datagen import DatagenSource
        from penstock_connectors.files import FileSink

        env = ps.Environment(
            parallelism=PARALLELISM, checkpoint_interval="500ms", checkpoint_root=self._folder / "checkpoints"
        )
        source = DatagenSource(
            rows=self.events,
            splits=_SPLITS,
            users=_USERS,
            max_amount=_MAX_AMOUNT,
            start_us=_START_US,
            event_rate=_ORDERS_PER_EVENT_SECOND,
            disorder_ms=DISORDER_SECONDS * 1000,
            rows_per_second=_RATE_PER_SECOND,
        )
        orders = env.from_source(
            source,
            watermarks=ps.WatermarkStrategy.bounded_out_of_orderness(f"{DISORDER_SECONDS}s", timestamp="ts"),
            uid="orders",
        )
        (
            orders.key_by("user_id")
            .window(ps.Tumbling(f"{WINDOW_SECONDS}s"))
            .aggregate(n=ps.count(), total=ps.sum("amount"))
            .uid("totals")
            .sink_to(FileSink(self._folder / "totals"), uid="out")
        )
        return env

    def begin(self) -> None:
        """Do nothing: the generator is part of the job."""

    def killed(self, kills: int) -> None:
        """Do nothing: the generator continues by itself."""

    def expected(self) -> Windows:
        """Compute the windows from the generator's published formula, implemented here independently."""
        number = np.arange(self.events, dtype=np.int64)
        users = (_mix(number, 1) % np.uint64(_USERS)).astype(np.int64)
        amounts = (_mix(number, 2) % np.uint64(_MAX_AMOUNT)).astype(np.int64) + 1
        early = (_mix(number, 3) % np.uint64(DISORDER_SECONDS * 1_000_000 + 1)).astype(np.int64)
        times = _START_US + number * 1_000_000 // _ORDERS_PER_EVENT_SECOND - early
        return expected_windows(users, amounts, times, WINDOW_SECONDS * 1_000_000)

    def output(self) -> Iterable[OutputRow]:
        """Read the part files with plain Arrow."""
        import pyarrow.parquet as pq

        for part in sorted((self._folder / "totals").glob("part-*.parquet")):
            table = pq.read_table(part)
            columns = [table["user_id"], table["window_start"].cast("int64"), table["n"], table["total"]]
            yield from zip(*(column.to_pylist() for column in columns), strict=True)

    def close(self) -> None:
        """Do nothing: nothing was started."""


def _mix(number: np.ndarray[Any, Any], field: int) -> np.ndarray[Any, Any]:
    """Return splitmix64's finaliser of the order's number plus `field` steps of the generator's constant."""
    wide = number.astype(np.uint64) + np.uint64(field * 0xD1B54A32D192ED03 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        wide = (wide ^ (wide >> np.uint64(shift))) * np.uint64(factor)
    return wide ^ (wide >> np.uint64(31))
