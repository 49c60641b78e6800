"""How long checkpoints take where a sink is too slow by far: `python -m tests.bench.slow_sink`.

Rows come at 50,000 a second; a function in front of the sink takes 500 of them. Compared are the same job with input
that it keeps up with, with aligned checkpoints, and with unaligned ones; also the bytes of rows in flight.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.support.jobs import run_job_file

from penstock.client.handle import TERMINAL, JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

JOB = """
import time
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

class Order(ps.Schema):
    user_id: int
    amount: int

def slow(order: Order) -> Order:
    time.sleep(1 / 250)
    return order

env = ps.Environment(
    parallelism=2, checkpoint_interval="1s", checkpoint_root="checkpoints", checkpoint_timeout="10min", {settings}
)
orders = env.from_source(DatagenSource(splits=2, rows_per_second={rate}, users=1000), uid="orders")
orders = orders.select("user_id", "amount").rebalance().map(slow).uid("slow")
orders.sink_to(FileSink("out", format="jsonl"), uid="out")
env.submit("slow-sink")
"""
#: Rows a second that the function keeps up with, and a hundred times what it takes.
KEPT_UP, TOO_MANY = 100, 50_000
ALIGNED = 'buffer_size="4KB"'
WAYS = {
    "unloaded": (KEPT_UP, ALIGNED),
    "aligned": (TOO_MANY, ALIGNED),
    "unaligned": (TOO_MANY, f"{ALIGNED}, unaligned_checkpoints=True"),
}


def measure(cluster, rate, settings, options):
    """Run the job for some seconds after its buffers are full; return figures of the checkpoints of this time."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, cluster.client() as rest:
        run_job_file(Path(name), JOB.format(rate=rate, settings=settings), cluster.rest_url)
        (found,) = [job for job in rest.jobs() if job["state"] not in TERMINAL]
        job = JobHandle(rest, found["jid"], "slow-sink")
        time.sleep(options.settle)
        begun = time.time() * 1000
        time.sleep(options.seconds)
        history = rest.checkpoints(job.job_id)["history"]
        job.cancel()
        job.wait()
    done = [one for one in history if one["status"] == "COMPLETED" and one["latest_ack_timestamp"] >= begun]
    open_ms = [time.time() * 1000 - one["trigger_timestamp"] for one in history if one["status"] == "IN_PROGRESS"]
    if not done:
        return {"checkpoints": 0, "longest_open_ms": round(max(open_ms, default=0))}
    took = [one["end_to_end_duration"] for one in done]
    in_flight = [one["persisted_data"] for one in done]
    return {
        "checkpoints": len(done),
        "ms": statistics.median(took),
        "longest_ms": max(took),
        "in_flight_bytes": statistics.median(in_flight),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before the first checkpoint that counts")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=Path(name))
        with LocalCluster(config) as cluster:
            for way, (rate, settings) in WAYS.items():
                figures = measure(cluster, rate, settings, options)
                print(json.dumps({"way": way, **figures, "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
