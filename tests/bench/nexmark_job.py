"""All Nexmark queries as one job: `python nexmark_job.py FOLDER`; what each leaves are Parquet files in FOLDER/qN."""

import sys
from pathlib import Path

import polars as pl

import penstock as ps
from penstock_connectors.files import FileSink
from penstock_lab.bench.jobs import nexmark
from penstock_lab.nexmark import NexmarkSource

#: 40 s of event time, so that there are several windows.
SOURCE = NexmarkSource(events=400_000, rate=10_000, splits=3, active_people=300, hot_bidder_ratio=2)


def main(folder):
    env = ps.Environment(parallelism=2, checkpoint_interval="1s", checkpoint_root=folder / "checkpoints")
    bids = nexmark.bids_of(env, SOURCE)
    # few bidders, who pause at times: Nexmark's own are soon gone for good
    few = bids.filter((pl.col("auction") + pl.col("dateTime").dt.epoch("s")) % 17 < 3)
    few = few.with_columns(bidder=pl.col("auction") % 17)
    for name, query in nexmark.QUERIES.items():
        rows = query.run(few if name == "q11" else bids)
        rows.sink_to(FileSink(str(folder / name), format="parquet"), uid=f"out-{name}")
    env.execute("nexmark")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
