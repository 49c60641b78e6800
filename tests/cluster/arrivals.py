"""A read-committed reader outside that notes when rows arrive: how long an output stands still."""

import threading
import time
from itertools import pairwise

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


class Arrivals(threading.Thread):
    """Reads topics, given with their partitions, from the beginning until `ended`."""

    def __init__(self, bootstrap, topics):
        super().__init__(name="arrivals", daemon=True)
        self.ended = threading.Event()
        #: topic -> when a row has arrived, as `time.monotonic()`.
        self.seen = {topic: [] for topic in topics}
        settings = {"bootstrap.servers": bootstrap, "group.id": "arrivals", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings)
        partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in partitions])

    def run(self):
        while not self.ended.is_set():
            messages = self._consumer.consume(2_000, timeout=0.02)
            now = time.monotonic()
            for message in messages:
                if message.error() is None:
                    self.seen[message.topic()].append(now)
        self._consumer.close()

    def end(self):
        self.ended.set()
        self.join()

    def gap(self, topic, since, until):
        """The longest time without a row in an interval."""
        times = [since, *(at for at in list(self.seen[topic]) if since < at < until), until]
        return max(later - earlier for earlier, later in pairwise(times))
