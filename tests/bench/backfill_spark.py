"""The bench's jobs as plain Spark, without penstock: `python backfill_spark.py KIND MASTER INPUT JARS OUTPUT`.

INPUT is a folder of Parquet files; with JARS, Spark's Kafka connector, it is the address of a broker.
"""

import os
import sys

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

kind, master, source, jars, target = sys.argv[1:]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.jars", jars)
session = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "UTC").getOrCreate()


def read(name):
    if not jars:
        return session.read.parquet(f"{source}/{name}")
    given = session.read.format("kafka").option("kafka.bootstrap.servers", source).option("subscribe", name).load()
    row = F.from_json(F.col("value").cast("string"), "user_id long, amount long, ts long").alias("row")
    return given.select(row).select("row.user_id", "row.amount", F.timestamp_micros("row.ts").alias("ts"))


orders = read("orders")


def aggregated(window):
    totals = orders.groupBy("user_id", window.alias("window")).agg(
        F.count("*").alias("n"), F.sum("amount").alias("total")
    )
    return totals.select(
        "user_id", F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"), "n", "total"
    )


def joined():
    others = read("others").select(F.col("user_id").alias("other"), F.col("ts").alias("ts_right"))
    near = F.expr("ts_right between ts - interval 20 milliseconds and ts + interval 20 milliseconds")
    return orders.join(others, (F.col("user_id") == F.col("other")) & near).select("user_id", "ts", "ts_right")


def by_second(group: pa.Table) -> pa.Table:
    """The process function by hand: a Python step for each row, in the order of time."""
    user = group.column("user_id")[0].as_py()
    counts = {}
    for at in group.column("ts").cast(pa.int64()).sort().to_pylist():
        second = at // 1_000_000
        counts[second] = counts.get(second, 0) + 1
    columns = {"user_id": [user] * len(counts), "second": list(counts), "rows": list(counts.values())}
    return pa.table(columns, schema=pa.schema({"user_id": pa.int64(), "second": pa.int64(), "rows": pa.int64()}))


def processed():
    """Do the work of `applyInArrow`, which requires Pandas without using it."""
    rows = orders.select("user_id", "ts")
    schema = "user_id long, second long, rows long"
    function = UserDefinedFunction(by_second, schema, evalType=PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF)
    plan = rows.groupBy("user_id")._jgd.flatMapGroupsInArrow(function(*rows.columns)._jc)
    return DataFrame(plan, session)


found = {
    "windows": lambda: aggregated(F.window("ts", "1 second")),
    "sessions": lambda: aggregated(F.session_window("ts", "150 milliseconds")),
    "join": joined,
    "process": processed,
}
found[kind]().write.parquet(target)
session.stop()
