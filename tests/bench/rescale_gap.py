"""How long output stands still when a running job is rescaled: `python -m tests.bench.rescale_gap`.

The job of `recovery_time` with little state (a thousand keys): windows of 200 ms from Kafka to Kafka, exactly once, at
a steady rate. Measured is the longest time without a new published record around each rescale, and beside them: output
comes with checkpoints, so that it stands still between them as well.
"""

import argparse
import itertools
import json
import os
import statistics
import time

from tests.bench.recovery_time import LIMIT_S, SETTLE_S, live_job, tell, up_to_date
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle

STEPS = (3, 1, 2, 3, 2, 1)
AROUND_S = 8.0


def silence(reader, since, until):
    """The longest time without output in [since, until], in seconds."""
    seen = [since, *(at for at, _ in list(reader.seen) if since < at < until), until]
    return max(later - earlier for earlier, later in itertools.pairwise(seen))


def measure(cluster, job_id, reader, options):
    """Rescale again and again; return (the longest silence, the time until the command returned) of each."""
    found = []
    for parallelism in STEPS[: options.rescales]:
        wait_until(lambda: up_to_date(reader), "output that keeps up with the input", seconds=LIMIT_S, step=0.05)
        time.sleep(SETTLE_S)
        asked = time.time()
        with cluster.client() as rest:
            JobHandle(rest, job_id, "recovery-time").rescale(parallelism)
        took = time.time() - asked
        time.sleep(AROUND_S)
        gap = silence(reader, asked, asked + AROUND_S - 0.5)
        found.append((round(gap, 3), round(took, 3)))
        if options.story:
            with cluster.client() as rest:
                tell(rest, job_id, asked)
        print(f"to {parallelism}: {gap:.3f} s without output, {took:.3f} s until it ran", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rescales", type=int, default=len(STEPS))
    parser.add_argument("--rate", type=int, default=10_000, help="events a second")
    parser.add_argument("--keys", type=int, default=1_000, help="keys of state")
    parser.add_argument("--interval", default="200ms", help="checkpoint interval")
    parser.add_argument("--story", action="store_true", help="print what the JobManager did in each")
    options = parser.parse_args()
    with live_job(options, interval=options.interval, slots_per_taskmanager=2) as (cluster, job_id, _live, reader):
        steady = silence(reader, time.time() - SETTLE_S + 0.5, time.time())
        found = measure(cluster, job_id, reader, options)
    gaps = [gap for gap, _ in found]
    figures = {
        "rescales": len(found), "gap_p50_s": round(statistics.median(gaps), 3), "gap_max_s": max(gaps),
        "steady_gap_s": round(steady, 3), "until_running_max_s": max(took for _, took in found),
        "interval": options.interval, "rate": options.rate, "keys": options.keys, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
