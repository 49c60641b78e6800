"""The bench's rewrites as plain Spark, without penstock: `python rewrite_state_spark.py KIND CORES INPUT OUTPUT`."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

kind, cores, source, target = sys.argv[1:]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
session = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "UTC").getOrCreate()
rows = session.read.parquet(source)
if kind == "rekey":
    rows = rows.withColumn("user", F.col("user_id").cast("string")).drop("user_id", "__key_hash")
    rows = rows.withColumn("__key_hash", F.xxhash64("user"))
rows.repartitionByRange(2 * int(cores), "__key_hash").write.parquet(target)
session.stop()
