"""startup: time from the command to the first readable result, and to the command's end, of a small job.

`penstock run` of a job file with a generator, a keyed window and a folder, repeatedly, each time in new folders: the
first result is the first published part file.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock_lab.bench.options import BenchOptions

RUNS = 5
_ROWS = 10_000
_LIMIT_MS, _LOOK_MS = 120_000.0, 5.0
_JOB = """
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism={parallelism}, checkpoint_interval="1s", checkpoint_root="checkpoints")
orders = env.from_source(
    DatagenSource(rows={rows}, disorder_ms=2000),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
    uid="orders",
)
totals = orders.key_by("user_id").window(ps.Tumbling("10s")).aggregate(n=ps.count(), total=ps.sum("amount"))
totals.uid("totals").sink_to(FileSink("totals"), uid="out")
env.execute("small")
"""


def startup(options: BenchOptions) -> dict[str, Any]:
    """Run the small job `RUNS` times.

    Raises:
        PenstockError: it failed.
    """
    rows = options.events_or(_ROWS)
    first, ends, cpu = [], [], []
    for _ in range(RUNS):
        before = os.times()
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            seen, ended = _run(Path(folder), _JOB.format(parallelism=options.parallelism, rows=rows))
        after = os.times()
        first.append(seen)
        ends.append(ended)
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        cpu.append(round(spent, 2))
    return {
        "workload": "startup",
        "events": rows,
        "parallelism": options.parallelism,
        "first_result_seconds": statistics.median(first),
        "end_seconds": statistics.median(ends),
        "cpu_seconds": statistics.median(cpu),
        "first_result_seconds_of_runs": first,
        "end_seconds_of_runs": ends,
        "load": round(os.getloadavg()[0], 1),
    }


def _run(folder: Path, job: str) -> tuple[float, float]:
    """Run the job in the folder; return the seconds to the first result and to the end."""
    (folder / "job.py").write_text(job, encoding="utf-8")
    results, clock = folder / "totals", SystemClock()
    with (folder / "log").open("wb") as log:
        started = clock.monotonic_ms()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "run", "job.py"], cwd=folder, stdout=log, stderr=log
        )
        seen = None
        while process.poll() is None:
            now = clock.monotonic_ms()
            if seen is None and results.exists() and any(p.name.startswith("part-") for p in results.iterdir()):
                seen = now
            if now - started > _LIMIT_MS:
                process.kill()
            clock.sleep_ms(_LOOK_MS)
        ended = clock.monotonic_ms()
    if process.returncode or seen is None:
        said = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise PenstockError(f"the small job failed: {said[-1] if said else process.returncode}")
    return round((seen - started) / 1000, 2), round((ended - started) / 1000, 2)
