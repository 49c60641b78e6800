"""w5 in Quix Streams: `w5_quix.py BROKER TOPIC EVENTS FOLDER`; its record is left in the folder.

Quix reads from Kafka alone, so its events are JSON in a topic, keyed by user, and decoding them is part of its figure.
It has event time only inside its windows: the function by row is a window's reducer. At least once, state in RocksDB
without changelog topics, one process. Started by `penstock bench w5 --peers` with the interpreter of Quix's venv.
"""

import json
import sys
import time
from pathlib import Path

from quixstreams import Application

T0_MS, SIZE_MS, LATE_MS, PRIME = 1_700_000_000_000, 10_000, 5_000, 1_000_000_007


def main():
    broker, topic, count, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    cut = (T0_MS + (count - 1) // 100 - LATE_MS - 50) // SIZE_MS * SIZE_MS
    app = Application(
        broker_address=broker,
        consumer_group=f"quix-{time.time()}",
        auto_offset_reset="earliest",
        commit_interval=5.0,
        use_changelog_topics=False,
        state_dir=str(folder / "state"),
        loglevel="ERROR",
    )
    events = app.topic(
        topic,
        key_deserializer="str",
        value_deserializer="json",
        timestamp_extractor=lambda value, headers, timestamp, kind: value["ts_ms"],
    )
    sums, times = [0, 0, 0, 0], [0.0, 0.0]

    def begin(value):
        times[0] = times[0] or time.time()
        return [1, value["amount"]]

    def add(running, value):
        times[1] = time.time()  # events behind the last window that closes are work, too
        return [running[0] + 1, running[1] + value["amount"]]

    def done(result, key, timestamp, headers):
        end, (n, total) = result["end"], result["value"]
        times[1] = time.time()
        if end <= cut:
            check = ((int(key) * 31 + (end - T0_MS) // SIZE_MS * 17 + n) * (total + 7)) % PRIME
            sums[:] = [a + b for a, b in zip(sums, (1, n, total, check), strict=True)]

    windows = app.dataframe(events).tumbling_window(SIZE_MS, grace_ms=LATE_MS).reduce(add, begin)
    windows.final(closing_strategy="partition").update(done, metadata=True)
    app.run(timeout=10.0)  # ends when no message has come for so long
    record = {"checksum": ":".join(map(str, sums)), "t_start": times[0], "t_end": max(times)}
    (folder / "quix.json").write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
