"""Where Spark looks for data sources by itself: with penstock installed, `spark.read.format("penstock")` is there."""

from penstock.snapshots.on_spark.spark_entry import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
