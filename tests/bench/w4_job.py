"""The penstock side of W4 as a process of its own; prints one BENCH line.

w4_job.py BOOTSTRAP IN OUT EVENTS CHECKPOINTS INTERVAL [PARALLELISM]
"""

import json
import sys
import time

import penstock as ps
from penstock.api.environment import use_executor
from penstock.client.executors import EmbeddedExecutor
from penstock_connectors.kafka import KafkaSink, KafkaSource


class Event(ps.Schema):
    """What the topic holds."""

    user_id: int
    amount: int
    ts_ms: int


def main() -> None:
    bootstrap, topic_in, topic_out, events, checkpoints, interval = sys.argv[1:7]
    marks: dict[str, float] = {}

    def on_poll(_handle: object, job: dict[str, object]) -> None:
        if job["state"] == "RUNNING":
            marks.setdefault("t_start", time.time())

    env = ps.Environment(
        parallelism=int(sys.argv[7]) if len(sys.argv) > 7 else 2,
        checkpoint_interval=interval,
        checkpoint_root=checkpoints,
    )
    stops = {(topic_in, p): int(events) // 4 for p in range(4)}
    source = KafkaSource(bootstrap, topic=topic_in, schema=Event, start="earliest", bounded=stops)
    rows = env.from_source(
        source, watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts_ms"), uid="in"
    )
    (
        rows.key_by("user_id")
        .window(ps.Tumbling("10s"))
        .aggregate(cnt=ps.count(), sm=ps.sum("amount"))
        .uid("window")
        .sink_to(KafkaSink(bootstrap, topic=topic_out, delivery="exactly-once"), uid="out")
    )
    with use_executor(EmbeddedExecutor(on_poll=on_poll), {}):
        env.execute("w4")
    print("BENCH " + json.dumps({"t_start": marks["t_start"], "t_end": time.time()}), flush=True)


if __name__ == "__main__":
    main()
