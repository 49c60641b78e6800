"""A source that runs ahead of its alignment group waits, in real processes, while the slow one goes on."""

from tests.support.waiting import wait_until

import penstock as ps
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

#: So many rows of the slow source come while the fast one stands still.
STALLED_ROWS = 60


def job(folder):
    env = ps.Environment(parallelism=1, checkpoint_interval="1s", checkpoint_root=str(folder / "checkpoints"))
    strategy = ps.WatermarkStrategy.monotonic(timestamp="ts").with_watermark_alignment("orders", "5s")

    def orders(uid, rows_per_second, event_rate):
        source = DatagenSource(splits=1, rows_per_second=rows_per_second, event_rate=event_rate)
        return env.from_source(source, watermarks=strategy, uid=uid)

    both = orders("fast", 5000, 50).union(orders("slow", 40, 10))
    both.key_by("user_id").window(ps.Tumbling("1h")).aggregate(n=ps.count()).uid("n").sink_to(
        FileSink(str(folder / "out")), uid="out"
    )
    return env


def test_a_fast_source_waits_for_a_slow_one(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=tmp_path / "cluster")
    with LocalCluster(config) as cluster, RestClient(cluster.rest_url) as rest:
        handle = ClusterExecutor(url=cluster.rest_url).submit(job(tmp_path).job_graph("aligned"))

        def read():
            vertices = rest.job(handle.job_id)["vertices"]
            rows = {v["name"]: v["metrics"].get("write-records", 0) for v in vertices}
            return {uid: sum(n for name, n in rows.items() if uid in name) for uid in ("fast", "slow")}

        before = read()

        def stalled():
            nonlocal before
            now = read()
            if now["fast"] != before["fast"] or now["fast"] == 0:
                before = now
            return now["slow"] >= before["slow"] + STALLED_ROWS

        wait_until(stalled, lambda: f"the fast source to wait: {before}, then {read()}", step=0.1)
        assert before["fast"] > before["slow"], "it had run ahead before it was told"
        handle.cancel()
