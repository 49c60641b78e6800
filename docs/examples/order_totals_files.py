"""The same job without any service: generated orders, totals as Parquet files, exactly once.

    penstock run docs/examples/order_totals_files.py

ORDERS is how many are generated (a million), OUTPUT the folder of the result. A run that was stopped resumes where it
was; one that is done has nothing left to do, so give `--fresh` and another folder to see it again.
"""

import os

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment.from_args(parallelism=2, checkpoint_interval="1s", checkpoint_root=os.environ.get("CHECKPOINTS"))
orders = env.from_source(
    DatagenSource(rows=int(os.environ.get("ORDERS", "1000000")), disorder_ms=2000),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
    uid="orders",
)
(
    orders.key_by("user_id")
    .window(ps.Tumbling("10s"))
    .aggregate(n=ps.count(), total=ps.sum("amount"))
    .uid("totals")
    .sink_to(FileSink(os.environ.get("OUTPUT", "order-totals")), uid="out")
)
env.execute("order-totals-files")
