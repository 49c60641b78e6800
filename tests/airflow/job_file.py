"""Job files for Airflow to submit: generated orders to files, bounded or not, with or without checkpoints."""

TEMPLATE = """
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism=1, checkpoint_interval={interval!r}, checkpoint_root={root!r})
orders = env.from_source(
    DatagenSource(rows={rows!r}, rows_per_second={rate!r}, event_rate=1_000, splits=2),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts"), uid="orders",
)
(orders.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
       .sink_to(FileSink({output!r}), uid="out"))
env.execute({name!r})
"""


def write_job(folder, name, *, rows=None, rate=2_000, interval="300ms", text=None):
    """Write the file of a job and return its path; `text` replaces all of it."""
    path = folder / f"{name}.py"
    path.write_text(
        text
        or TEMPLATE.format(
            name=name, rows=rows, rate=rate, interval=interval, root=str(folder / "checkpoints"),
            output=str(folder / f"{name}-out"),
        )
    )  # fmt: skip
    return path
