"""w4's upper bounds, each a process: `python -m penstock_lab.bench.jobs.kafka_clients NAME BOOTSTRAP TOPIC STOPS`.

NAME is `bare-client` or `reader-json` (described in `kafka_windows`), STOPS the number of events in each partition,
separated by commas. Prints one BENCH line once it has read all events. Started as a peer of w4.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from penstock.connector.source import SourceContext, SourceSplit
from penstock.core.clock import SystemClock
from penstock.core.errors import ConnectorError, PenstockError
from penstock_connectors.kafka import KafkaSource
from penstock_connectors.kafka.read.reader import KafkaReader
from penstock_lab.bench.jobs.kafka_windows import Event
from penstock_lab.bench.jobs.topics import PARTITIONS

_LIMIT_SECONDS = 600.0


def bare_client(bootstrap: str, topic: str, stops: list[int]) -> float:
    """Read with the plain client and discard the messages; return the start time."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 32_768,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, started, events = 0, time.time(), sum(stops)
    while found < events:
        _check(started, found, events)
        found += sum(message.error() is None for message in consumer.consume(1000, 5.0))
    return started


def reader_json(bootstrap: str, topic: str, stops: list[int]) -> float:
    """Read and decode as the job's source does; return the start time."""
    woken = threading.Event()
    context = SourceContext(subtask=0, parallelism=1, job_name="w4", uid="reader", clock=SystemClock(), wake=woken.set)
    reader = KafkaReader(KafkaSource(bootstrap, topic=topic, schema=Event).spec(), context)
    places = [{"topic": topic, "partition": p, "offset": 0, "stop": stop} for p, stop in enumerate(stops)]
    found, started, events = 0, time.time(), sum(stops)
    reader.add_splits(tuple(SourceSplit(id=f"{topic}-{place['partition']}", state=place) for place in places))
    while found < events:
        _check(started, found, events)
        woken.clear()
        rows = sum(batch.data.num_rows for batch in reader.poll(65_536).batches)
        found += rows
        if not rows:
            woken.wait(0.05)
    reader.close()
    return started


def _check(started: float, found: int, events: int) -> None:
    if time.time() - started > _LIMIT_SECONDS:
        raise ConnectorError(f"{found} of {events} events were read within {_LIMIT_SECONDS:g} s")


if __name__ == "__main__":
    name, bootstrap, topic, counts = sys.argv[1:5]
    read = {"bare-client": bare_client, "reader-json": reader_json}[name]
    try:
        began = read(bootstrap, topic, [int(count) for count in counts.split(",")])
    except PenstockError as error:
        sys.exit(str(error))
    sys.stdout.write("BENCH " + json.dumps({"t_start": began, "t_end": time.time()}) + "\n")
