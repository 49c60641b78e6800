"""w5 in PyFlink: `w5_pyflink.py EVENTS process|thread FOLDER`; each subtask leaves its record in the folder.

A `KeyedProcessFunction` with four value states in turn and an event-time timer for each key and window, over events
that the JVM generates; hash map state, no checkpoints. Started by `penstock bench
w5 --peers` with the interpreter of PyFlink's venv.
"""

import json
import sys
import time
import uuid
from pathlib import Path

from pyflink.common import Configuration, Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.functions import KeyedProcessFunction
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

T0_MS, SIZE_MS, USERS, PRIME = 1_700_000_000_000, 10_000, 100_000, 1_000_000_007


class Windows(KeyedProcessFunction):
    """Count and sum of each user and window."""

    def __init__(self, folder, cut):
        self.folder, self.cut = folder, cut

    def open(self, ctx):
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.ring = [ctx.get_state(ValueStateDescriptor(f"window{i}", pair)) for i in range(4)]
        self.sums, self.begun = [0, 0, 0, 0], 0.0

    def process_element(self, value, ctx):
        if not self.begun:
            self.begun = time.time()
        window = value[2] // SIZE_MS
        state = self.ring[window % 4]
        running = state.value()
        if running is None:
            state.update((1, value[1]))
            ctx.timer_service().register_event_time_timer((window + 1) * SIZE_MS - 1)
        else:
            state.update((running[0] + 1, running[1] + value[1]))

    def on_timer(self, timestamp, ctx):
        state = self.ring[timestamp // SIZE_MS % 4]
        n, total = state.value()
        user, end = ctx.get_current_key(), timestamp + 1
        state.clear()
        if end <= self.cut:
            check = ((user * 31 + (end - T0_MS) // SIZE_MS * 17 + n) * (total + 7)) % PRIME
            self.sums = [a + b for a, b in zip(self.sums, (1, n, total, check), strict=True)]
        yield user, end, n, total

    def close(self):
        record = {"checksum": ":".join(map(str, self.sums)), "t_start": self.begun or time.time(), "t_end": time.time()}
        Path(self.folder, f"{uuid.uuid4().hex}.json").write_text(json.dumps(record), encoding="utf-8")


def events(tables, count):
    """Return the stream of (user, amount, time in ms), made by Flink's sequence generator."""
    a = "MOD(i * 2654435761, 4294967296)"
    b = f"MOD(MOD({a} + {a} / 32768, 4294967296) * 1540483477, 4294967296)"
    c = f"MOD(MOD({a} + {a} / 8192, 4294967296) * 1103515245, 4294967296)"
    ms = f"{T0_MS} + i / 100 - MOD({c} / 16, 5000)"
    tables.execute_sql(
        f"""CREATE TABLE ev (i BIGINT, user_id AS MOD({b} / 16, {USERS}), amount AS 1 + MOD({c} / 1048576, 1000),
        ms AS {ms}, ts AS TO_TIMESTAMP_LTZ({ms}, 3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (
        'connector'='datagen', 'fields.i.kind'='sequence', 'fields.i.start'='0', 'fields.i.end'='{count - 1}',
        'rows-per-second'='1000000000')"""
    )
    return tables.to_data_stream(tables.sql_query("SELECT user_id, amount, ms, ts FROM ev"))


def main():
    count, mode, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    settings = Configuration()
    for key, value in {
        "python.execution-mode": mode,
        "state.backend.type": "hashmap",
        "table.local-time-zone": "UTC",
        "taskmanager.memory.managed.size": "1g",
        "python.fn-execution.bundle.size": "100000",  # the defaults of both, 1000, are far slower
        "python.state.cache-size": "1000000",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
    }.items():
        settings.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(2)
    env.get_config().enable_object_reuse()
    cut = (T0_MS + (count - 1) // 100 - 5000 - 50) // SIZE_MS * SIZE_MS
    rows = events(StreamTableEnvironment.create(env), count).key_by(lambda row: row[0], key_type=Types.LONG())
    out = rows.process(Windows(folder, cut), output_type=Types.TUPLE([Types.LONG() for _ in range(4)]))
    out.sink_to(Sink(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
    env.execute("w5")


if __name__ == "__main__":
    main()
