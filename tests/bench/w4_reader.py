"""penstock's Kafka reader and JSON decoder alone: `w4_reader.py BOOTSTRAP TOPIC EVENTS`; prints one BENCH line.

What is between this and the W4 job is the job: watermarks, key split, network, window, checkpoint, sink.
"""

import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from w4_job import Event

from penstock.connector.source import SourceContext, SourceSplit
from penstock.core.clock import SystemClock
from penstock_connectors.kafka import KafkaSource
from penstock_connectors.kafka.reader import KafkaReader

PARTITIONS = 4
DEADLINE_SECONDS = 300.0


def main() -> None:
    bootstrap, topic, events = sys.argv[1], sys.argv[2], int(sys.argv[3])
    woken = threading.Event()
    context = SourceContext(subtask=0, parallelism=1, job_name="w4", uid="reader", clock=SystemClock(), wake=woken.set)
    reader = KafkaReader(KafkaSource(bootstrap, topic=topic, schema=Event).spec(), context)
    started = time.time()
    stop = events // PARTITIONS
    places = [{"topic": topic, "partition": p, "offset": 0, "stop": stop} for p in range(PARTITIONS)]
    reader.add_splits(tuple(SourceSplit(id=f"{topic}-{place['partition']}", state=place) for place in places))
    rows = 0
    while rows < events:
        if time.time() - started > DEADLINE_SECONDS:
            raise RuntimeError(f"{rows} of {events} events within {DEADLINE_SECONDS} s")
        woken.clear()
        found = sum(batch.data.num_rows for batch in reader.poll(65_536).batches)
        rows += found
        if not found:
            woken.wait(0.05)
    print("BENCH " + json.dumps({"t_start": started, "t_end": time.time()}), flush=True)
    reader.close()


if __name__ == "__main__":
    main()
