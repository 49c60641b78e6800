"""W4: Kafka -> keyed 10 s window -> Kafka, exactly once, beside the bare client's ceiling and Flink SQL, in one run.

    python tests/bench/w4_kafka.py --events 500000,3000000 [--flink DIR] [--interval 5s] [--json out.json]

Each peer runs once (or `--runs` times) for every number of events. With two numbers the difference gives the marginal
CPU time of an event, in which start-up, class loading and compilation cancel, for every peer alike. `bare client` reads
the messages and does nothing; `reader + json` is penstock's own reader and decoder without a job. DIR is a folder in
which the peers' set-up script has installed Flink (`venvs/flink`, `jars/flink`, `build/classes`). Every figure is given
only when the output was compared row by row. CPU seconds are those of the whole process tree, from outside; the
machine's load is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.tree_meter import TreeMeter, become_reaper
from penstock.testing.servers import start_kafka

T0_MS = 1_700_000_000_000
WINDOW_MS = 10_000
USERS = 100_000
PARTITIONS = 4
_M32 = np.uint64((1 << 32) - 1)
_CHUNK = 100_000


def events(low: int, high: int) -> tuple[np.ndarray[Any, Any], ...]:
    """User, amount, event time (ms) of events `low..high`: integer arithmetic every peer repeats."""
    i = np.arange(low, high, dtype=np.uint64)
    a = (i * np.uint64(2654435761)) & _M32
    b = (((a + (a >> np.uint64(15))) & _M32) * np.uint64(1540483477)) & _M32
    c = (((a + (a >> np.uint64(13))) & _M32) * np.uint64(1103515245)) & _M32
    user = ((b >> np.uint64(4)) % np.uint64(USERS)).astype(np.int64)
    amount = 1 + ((c >> np.uint64(20)) % np.uint64(1000)).astype(np.int64)
    times = T0_MS + (i // np.uint64(100)).astype(np.int64) - ((c >> np.uint64(4)) % np.uint64(5000)).astype(np.int64)
    return user, amount, times


def expected(count: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(user, window end ms) -> (count, sum), all windows."""
    user, amount, times = events(0, count)
    ends = times // WINDOW_MS * WINDOW_MS + WINDOW_MS
    keys, inverse = np.unique(np.stack([user, ends]), axis=1, return_inverse=True)
    counts = np.bincount(inverse)
    sums = np.bincount(inverse, weights=amount).astype(np.int64)
    pairs = zip(keys[0].tolist(), keys[1].tolist(), strict=True)
    return {key: (int(n), int(s)) for key, n, s in zip(pairs, counts, sums, strict=True)}


def fill(bootstrap: str, topic: str, count: int) -> int:
    """Produce the events as JSON, partition = event number mod 4; return how many."""
    from confluent_kafka import Producer

    count -= count % PARTITIONS
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 400_000})
    for low in range(0, count, _CHUNK):
        user, amount, times = (column.tolist() for column in events(low, min(low + _CHUNK, count)))
        for j, (u, m, t) in enumerate(zip(user, amount, times, strict=True)):
            value = b'{"user_id":%d,"amount":%d,"ts_ms":%d}' % (u, m, t)
            while True:
                try:
                    producer.produce(topic, value, partition=(low + j) % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} events were not taken by the broker")
    return count


def create(bootstrap: str, topic: str) -> None:
    """Create a topic with four partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive its futures
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(30)


def read(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """All read-committed rows of a topic."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    rows, ended = [], set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, 10.0):
            if message.error() is None:
                rows.append(json.loads(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise RuntimeError(message.error())
    consumer.close()
    return rows


def verdict(rows: list[dict[str, Any]], want: dict[tuple[int, int], tuple[int, int]], *, all_windows: bool) -> str:
    """`equal`, or how the output differs. Without `all_windows` only windows a 5 s watermark closes are compared."""
    last = max(end for _, end in want)
    cut = last if all_windows else last - 2 * WINDOW_MS
    want = {key: value for key, value in want.items() if key[1] <= cut}
    seen: Counter[tuple[int, int]] = Counter()
    wrong = 0
    for row in rows:
        end = row["window_end"]
        end_ms = (
            end
            if isinstance(end, int)
            else int(np.datetime64(str(end).rstrip("Z").split("+")[0], "ms").astype(np.int64))
        )
        key = (row["user_id"], end_ms)
        if end_ms > cut:
            continue
        seen[key] += 1
        wrong += want.get(key) != (row["cnt"], row["sm"])
    missing, duplicated = len(want.keys() - seen.keys()), sum(n - 1 for n in seen.values())
    return (
        "equal" if not (missing or duplicated or wrong) else f"missing {missing} duplicated {duplicated} wrong {wrong}"
    )


def measure(name: str, command: list[str], cwd: Path | None = None) -> dict[str, Any]:
    """Run a command, metering its tree; merge what its BENCH lines say."""
    started = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd)
    meter = TreeMeter(process.pid)
    meter.start()
    record: dict[str, Any] = {"name": name}
    lines: list[str] = []
    watchdog = threading.Timer(900, process.kill)
    watchdog.start()
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("BENCH "):
            record |= json.loads(line[6:])
            meter.stop()
    process.wait()
    watchdog.cancel()
    if process.returncode:
        sys.stderr.write("".join(lines[-30:]))
        raise RuntimeError(f"{name} ended with {process.returncode}")
    start, end = record.get("t_start", started), record.get("t_end", time.time())
    record["seconds"] = end - start
    record["cpu_seconds"] = meter.cpu_between(start, end)
    record["cpu_seconds_total"] = meter.total
    record["cpu_seconds_by_process"] = meter.by_process()
    record["load"] = os.getloadavg()[0]
    record["peak_rss_mb"] = meter.peak_rss_bytes // 1_000_000
    return record


BARE = """
import json, sys, time
from confluent_kafka import Consumer, TopicPartition
c = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "bare", "enable.auto.commit": False,
              "fetch.queue.backoff.ms": 5, "queued.min.messages": 100000, "queued.max.messages.kbytes": 32768})
c.assign([TopicPartition(sys.argv[2], p, 0) for p in range(4)])
n, t, want = 0, time.time(), int(sys.argv[3])
while n < want:
    n += sum(m.error() is None for m in c.consume(1000, 5.0))
print("BENCH " + json.dumps({"t_start": t, "t_end": time.time()}), flush=True)
"""


def flink_command(folder: Path, bootstrap: str, topics: tuple[str, str], count: int) -> list[str]:
    lib = folder / "venvs/flink/lib/python3.11/site-packages/pyflink/lib"
    scratch = folder / "data/tmp"
    opens = ["--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    return [
        "java", "-Xmx3g", *opens, f"-Dlog4j.configurationFile={folder}/build/log4j2.properties",
        "-cp", f"{folder}/build/classes:{lib}/*:{folder}/jars/flink/*", "bench.FlinkBench",
        "sql", "w4", str(count), "hashmap", "5000", "blackhole", str(scratch), bootstrap, *topics,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=lambda text: [int(n) for n in text.split(",")], default=[200_000, 2_000_000])
    parser.add_argument("--flink", type=Path)
    parser.add_argument("--only-flink", action="store_true", help="leave out our side (a busy machine: shorter runs)")
    parser.add_argument("--interval", default="5s")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    become_reaper()
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-w4-") as scratch:
        kafka = start_kafka(Path(scratch) / "kafka")
        try:
            for events_of_size in options.events:
                topic = f"w4-in-{events_of_size}"
                create(kafka.bootstrap, topic)
                count = fill(kafka.bootstrap, topic, events_of_size)
                want = expected(count)
                for run in range(options.runs):
                    place = Path(scratch) / f"{count}-{run}"
                    found = one_round(options, kafka.bootstrap, (topic, count), want, place)
                    for record in found:
                        show(record)
                    records += found
        finally:
            kafka.remove()
    compare(records)
    if options.json:
        options.json.write_text(json.dumps({"records": records, "marginal": marginal(records)}, indent=1))


def show(record: dict[str, Any]) -> None:
    """Print one run."""
    print(
        f"{record['name']:<14} {record['events']:>9} events  {record['answer']:<6} {record['seconds']:6.1f} s  "
        f"running {record['cpu_seconds']:6.2f} CPU-s  total {record['cpu_seconds_total']:6.2f} CPU-s  "
        f"rss {record['peak_rss_mb']} MB  load {record['load']:.1f}"
    )
    if len(record["cpu_seconds_by_process"]) > 1:
        print(f"{'':<14} {record['cpu_seconds_by_process']}")
    sys.stdout.flush()


def compare(records: list[dict[str, Any]]) -> None:
    """Print the marginal figures."""
    found = marginal(records)
    for name, cost in found.items():
        ratio = f"{cost / found['penstock']:5.2f} x penstock" if "penstock" in found else ""
        print(f"{name:<14} marginal {cost:.3f} CPU-us an event, {1000 / cost:6.0f} k events/CPU-s  {ratio}")


def marginal(records: list[dict[str, Any]]) -> dict[str, float]:
    """CPU microseconds of one event more, by peer: least total of the largest size minus that of the smallest."""
    found = {}
    for name in dict.fromkeys(record["name"] for record in records):
        mine = [record for record in records if record["name"] == name and record["answer"] == "equal"]
        sizes = sorted({record["events"] for record in mine})
        if len(sizes) < 2:
            continue
        low, high = (min(r["cpu_seconds_total"] for r in mine if r["events"] == n) for n in (sizes[0], sizes[-1]))
        if high > low:
            found[name] = (high - low) / (sizes[-1] - sizes[0]) * 1e6
    return found


def one_round(
    options: argparse.Namespace, bootstrap: str, source: tuple[str, int], want: dict[Any, Any], scratch: Path
) -> list[dict[str, Any]]:
    """Measure every peer once on one topic."""
    scratch.mkdir()
    (topic, count), here = source, Path(__file__).parent
    out, records = f"w4-out-{scratch.name}", []
    if not options.only_flink:
        records = [
            measure("bare client", [sys.executable, "-c", BARE, bootstrap, topic, str(count)]),
            measure("reader + json", [sys.executable, str(here / "w4_reader.py"), bootstrap, topic, str(count)]),
        ]
        for record in records:
            record["answer"] = "equal"
        create(bootstrap, out)
        job = [sys.executable, str(here / "w4_job.py"), bootstrap, topic, out, str(count)]
        penstock = measure("penstock", [*job, str(scratch / "ck"), options.interval])
        penstock["answer"] = verdict(read(bootstrap, out), want, all_windows=True)
        records.append(penstock)
    if options.flink:
        create(bootstrap, f"flink-{out}")
        command = flink_command(options.flink, bootstrap, (topic, f"flink-{out}"), count)
        flink = measure("flink sql", command, options.flink)
        flink["answer"] = verdict(read(bootstrap, f"flink-{out}"), want, all_windows=False)
        records.append(flink)
    for record in records:
        record["events"] = count
    return records


if __name__ == "__main__":
    os.environ.setdefault("PENSTOCK_SERVERS", "local")
    main()
