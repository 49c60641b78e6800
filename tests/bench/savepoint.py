"""How long savepoints of a running job take: `python -m tests.bench.savepoint --keys 20000000`.

The job of `tests.bench.rewrite_downtime`, with one slot or several. Printed for each format: the seconds from the
request to the answer, the megabytes written, and the rows read meanwhile, as a share of those that are generated.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from tests.bench.rewrite_downtime import LIMIT_S, Scene, add_scene_options, told
from tests.support.waiting import wait_until

from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.rewrite.repartition import state_bytes

ROWS_PER_SECOND = 5_000


def read_rows(job):
    """Return the rows that the job's source has read."""
    return sum(job.client.summary(job.job_id)["rows-read"].values())


def measure(scene, slots, native):
    """Take one savepoint of a job that has begun, and print its figures."""
    name = f"slots-{slots}-{'native' if native else 'canonical'}"
    job = scene.submit(scene.graph(name, parallelism=slots), scene.began, claim=False)
    completed = lambda: job.client.summary(job.job_id).get("checkpoints-completed", 0)
    wait_until(lambda: completed() >= 3, "three checkpoints", seconds=LIMIT_S, step=0.2)
    rows, began = read_rows(job), time.monotonic()
    uri = Path(job.savepoint(str(scene.top / name), native=native, timeout_ms=LIMIT_S * 1000.0).removeprefix("file://"))
    taken = time.monotonic() - began
    share = (read_rows(job) - rows) / (taken * ROWS_PER_SECOND)
    written = sum(path.stat().st_size for path in uri.rglob("*") if path.is_file())
    told(
        slots=slots, native=native, seconds=round(taken, 1), written_mb=written >> 20, rows_share=round(share, 2),
        load=round(os.getloadavg()[0], 1),
    )  # fmt: skip
    job.cancel()
    job.wait()


def main():
    """Print the state's size, and a line of JSON for each savepoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_scene_options(parser)
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as top:
        scene = Scene(top, options, slots=max(options.slots))
        try:
            told(state_mb=state_bytes(open_snapshot(scene.began)) >> 20)
            for slots in options.slots:
                for native in (False, True):
                    measure(scene, slots, native)
        finally:
            scene.cluster.close()


if __name__ == "__main__":
    main()
