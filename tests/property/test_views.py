"""A job on columns of views against the same job on plain strings and binaries."""

import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.pools import pooled
from tests.property.view_jobs import Sink, Source, ViewSink, run
from tests.support.depth import examples

import penstock as ps
from penstock.core.views import bytes_without_pools, filter_array, is_view, plain_schema

VIEWS = pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string_view()), ("b", pa.binary_view())])
PLAIN = plain_schema(VIEWS)
#: Inlined ones, longer ones, those of 12 and 13 bytes.
TEXT = st.none() | st.text("aé", max_size=30) | st.sampled_from(["", "x" * 12, "x" * 13, "y" * 300])
ROWS = st.lists(st.tuples(TEXT, TEXT.map(lambda text: None if text is None else text.encode())), max_size=12)
BATCHES = st.lists(ROWS, min_size=1, max_size=4)

STEPS = {
    "short": lambda rows: rows.filter(pl.col("s").str.len_bytes() <= 12),
    "long": lambda rows: rows.filter(pl.col("b").bin.size() > 12),
    "some": lambda rows: rows.filter(pl.col("n") % 3 != 0),
    "null": lambda rows: rows.filter(pl.col("s").is_null() | (pl.col("n") > 2)),
    "named": lambda rows: rows.select("s", "b", "n"),
    "swapped": lambda rows: rows.with_columns(b=pl.col("s").cast(pl.Binary)),
    "upper": lambda rows: rows.with_columns(u=pl.col("s").str.to_uppercase()),
    "renamed": lambda rows: rows.select("n", pl.col("s").alias("t"), "b", s=pl.col("s").fill_null("none")),
    "plain": lambda rows: rows.with_columns(pl.col("s").cast(pl.String), pl.col("b").cast(pl.Binary)),
    "sent": lambda rows: rows.rebalance().select(pl.all()),
    "wider": lambda rows: rows.filter(pl.col("n") >= 0).set_parallelism(2),
    "narrower": lambda rows: rows.select("n", "s", "b").set_parallelism(1),
    "keyed": lambda rows: rows.key_by("s").with_columns(k=pl.col("s").str.len_bytes()),
}


def job(schema, steps, sink):
    env = ps.Environment(parallelism=1)
    rows = env.from_source(Source(schema), uid="in")
    for step in steps:
        rows = STEPS[step](rows)
    rows.sink_to(sink, uid="out")
    return env.job_graph("job")


def batches(drawn, *, views):
    """One a list of rows, numbered through, each a slice of a batch with a row before and one behind it."""
    made, first = [], 0
    for rows in drawn:
        rows = [("before" * 5, b""), *rows, (None, b"behind" * 5)]  # noqa: PLW2901
        s, b = zip(*rows, strict=True)
        columns = (
            [pooled(s, pa.string_view(), b"unused" * 9), pooled(b, pa.binary_view())]
            if views
            else [pa.array(s, pa.string()), pa.array(b, pa.binary())]
        )
        numbers = pa.array(range(first, first + len(rows)), pa.int64())
        whole = pa.record_batch([numbers, *columns], schema=VIEWS if views else PLAIN)
        made.append(whole.slice(1, len(rows) - 2))
        first += len(rows)
    return made


def written(found):
    return sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["n"])


@given(BATCHES, st.lists(st.sampled_from(sorted(STEPS)), max_size=5), st.booleans())
@examples(150)
def test_a_job_on_views_gives_what_it_gives_on_plain_columns(drawn, steps, takes):
    expected, _ = run(job(PLAIN, steps, Sink()), batches(drawn, views=False))
    found, _ = run(job(VIEWS, steps, ViewSink() if takes else Sink()), batches(drawn, views=True))
    assert written(found) == written(expected)
    assert takes or not any(is_view(kind) for batch in found for kind in batch.schema.types)


@given(st.lists(TEXT, min_size=1, max_size=20), st.data())
def test_the_values_kept_are_those_arrow_keeps(values, data):
    before = data.draw(st.integers(0, len(values) - 1))
    mask = pa.array([data.draw(st.booleans()) for _ in values[before:]])
    views = pooled(values, pa.string_view()).slice(before)
    kept = filter_array(views, mask)
    kept.validate(full=True)
    assert kept.type == pa.string_view()
    assert kept.to_pylist() == pa.array(values, pa.string()).slice(before).filter(mask).to_pylist()
    assert kept.buffers()[2].address == views.buffers()[2].address, "the pool is not copied"


def test_named_columns_are_handed_on_without_a_copy():
    """Through a source, a filter and projections up to a sink that takes them."""
    texts = ["word " * 5 + str(i) for i in range(100)]
    columns = [pa.array(range(100), pa.int64()), pooled(texts, pa.string_view()), pooled([b""] * 100, pa.binary_view())]
    batch = pa.record_batch(columns, schema=VIEWS)
    (found,), edges = run(job(VIEWS, ["some", "renamed"], ViewSink()), [batch])
    assert not edges
    assert found.schema.field("t").type == pa.string_view()
    assert found.schema.field("s").type == pa.string(), "a computed one is plain"
    assert found.column("t").buffers()[2].address == batch.column("s").buffers()[2].address
    assert found.column("t").to_pylist() == [text for i, text in enumerate(texts) if i % 3]


def test_a_sent_batch_is_as_small_as_its_rows():
    pool, rows = b"a text that nobody needs " * 50_000, 1000
    texts = [f"a text of some length, number {i}" for i in range(rows)]
    columns = [
        pa.array(range(rows)),
        pooled(texts, pa.string_view(), pool),
        pooled([b"b" * 40] * rows, pa.binary_view()),
    ]
    whole = pa.record_batch(columns, schema=VIEWS)
    graph = job(VIEWS, ["wider"], ViewSink())
    found, (edge, *_) = run(graph, [whole.slice(i, 100) for i in range(0, rows, 100)])
    assert sorted(text for batch in found for text in batch.column("s").to_pylist()) == sorted(texts)
    needed = rows * (8 + 4 + 4 + 40) + sum(map(len, texts))
    sizes = [element.item.size for channel in edge.sent for element in channel if element.is_data]
    assert needed <= sum(sizes) < 1.1 * needed + 1000 * len(sizes)
    assert needed <= edge.partition.bytes_out < 1.1 * needed
    assert len(sizes) < 10, "batches so small go together"


def test_a_pool_is_not_counted_to_each_batch_of_it():
    column = pooled(["x" * 30] * 10, pa.string_view(), b"pool" * 100_000)
    batch = pa.record_batch([column, pa.array(range(10))], names=["s", "n"])
    assert bytes_without_pools(batch.slice(2, 5)) == 5 * (16 + 8)
