"""Runs in the Python of Flink's distribution: answers questions with Flink SQL, in one JVM.

`python flink_program.py FILE`: the file is what `tests.flink.regenerate` writes; one line of JSON a question comes out.
"""

import importlib.metadata
import json
import sys
from pathlib import Path

from canonical import line
from pyflink.table import EnvironmentSettings, TableEnvironment

TABLE = """CREATE TABLE part{number} (
  id BIGINT, side STRING, k STRING{null}, g BIGINT, v BIGINT, w DOUBLE, score BIGINT, ts_ms BIGINT, wm_ms BIGINT,
  ts AS {time}, WATERMARK FOR ts AS {watermark}{key}
) WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'json')"""
LOCAL, PLAIN = "TO_TIMESTAMP_LTZ({}, 3)", "CAST(TO_TIMESTAMP_LTZ({}, 3) AS TIMESTAMP(3))"


def tables(question):
    """Make the tables of a question: the rows of all partitions are `ev`, its two sides `l` and `r`."""
    settings = {
        "table.local-time-zone": question["time_zone"] or "UTC",
        "pipeline.auto-watermark-interval": "0",  # a watermark behind every row that brings one
        "parallelism.default": str(question["parallelism"]),
        "heartbeat.timeout": "600000",
    }
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in (settings | question["settings"]).items():
        environment.get_config().set(name, value)
    time = LOCAL if question["time_zone"] else PLAIN
    bound = question["bound_ms"]
    watermark = time.format("wm_ms" if bound is None else f"ts_ms - {bound + 1}")
    for number, path in enumerate(question["files"]):
        last = question["versions"] and path == question["files"][-1]
        words = {"null": " NOT NULL", "key": ", PRIMARY KEY (k) NOT ENFORCED"} if last else {"null": "", "key": ""}
        times = {"time": time.format("ts_ms"), "watermark": watermark}
        environment.execute_sql(TABLE.format(number=number, path=path, **words, **times))
    parts = " UNION ALL ".join(f"SELECT * FROM part{number}" for number in range(len(question["files"])))
    environment.execute_sql(f"CREATE VIEW ev AS {parts}")
    for side in "lr":
        environment.execute_sql(f"CREATE VIEW {side} AS SELECT * FROM ev WHERE side = '{side.upper()}'")
    return environment


def answer(question):
    """Return the rows that stand at the end: those that were not taken back."""
    rows = []
    environment = tables(question)
    for statement in question["views"]:
        environment.execute_sql(statement)
    with environment.execute_sql(question["asked"]).collect() as found:
        for row in found:
            kind = row.get_row_kind().name
            text = line(row)
            if kind in ("INSERT", "UPDATE_AFTER"):
                rows.append(text)
            else:
                rows.remove(text)
    return rows


def main():
    version = importlib.metadata.version("apache-flink")
    for question in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        found = {"name": question["name"], "flink": version, "rows": answer(question)}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
