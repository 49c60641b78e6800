"""A topic whose beginning lies in Parquet files or an Iceberg table, on S3 alone: stitched, the live job ends exact."""

import random
from contextlib import closing
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog.sql import SqlCatalog
from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, Orders, create_topics, read_windows, verdict
from tests.cluster.stage import cli
from tests.support.waiting import wait_until

from penstock.checkpoint.stores import open_store

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

TASKMANAGERS = 2


def parts_of(orders, ends):
    """The orders before `ends`, by partition, in any order: two tables of two partitions each."""
    users, amounts, times_ms = (column.tolist() for column in orders.columns())
    rows = [
        (users[i], amounts[i], times_ms[i] * 1000, i % orders.partitions, i // orders.partitions)
        for i in range(orders.events)
        if i // orders.partitions < ends[i % orders.partitions]
    ]
    random.Random(7).shuffle(rows)
    types = [pa.int64(), pa.int64(), pa.timestamp("us", "UTC"), pa.int32(), pa.int64()]
    names = ["user_id", "amount", "ts", "kafka_partition", "kafka_offset"]
    for number in range(2):
        own = [row for row in rows if row[3] % 2 == number]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*own, strict=True), types, strict=True)]
        yield pa.table(columns, names=names)


def archive(stage, orders, uri, ends, monkeypatch, *, offsets=True):
    """Write the orders before `ends`, by partition, as files of two partitions each."""
    for name, value in stage.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(uri)
    for number, table in enumerate(parts_of(orders, ends)):
        data = BytesIO()
        pq.write_table(table if offsets else table.select(table.column_names[:3]), data, row_group_size=300)
        store.put(f"half={number}/part.parquet", data.getvalue())


def forget(stage, topic, befores):
    """Have the topic delete its records before some offsets."""
    wanted = [TopicPartition(topic, partition, before) for partition, before in enumerate(befores)]
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    for future in admin.delete_records(wanted).values():
        future.result(60)


@pytest.fixture
def job(stage):
    orders = Orders(5, 6_000)
    source, sink, name = stage.fresh("orders"), stage.fresh("totals"), stage.fresh("job")
    create_topics(stage.bootstrap, **{source: orders.partitions, sink: 2})
    feed = Feed(stage.bootstrap, source, orders, 100_000)
    feed.start()
    feed.join()
    made = Job(name, stage.bootstrap, source, sink, stage.root(name), stops=orders.stops(source))
    return orders, made, made.write(stage.folder)


def test_a_topic_that_has_forgotten_its_beginning(stage, shared, here, job, monkeypatch):
    orders, made, path = job
    rand = random.Random(11)
    ends = [rand.randrange(400, 900) for _ in range(orders.partitions)]
    cuts = {f"{made.source}-{p}": rand.randrange(1_000, 1_400) for p in range(orders.partitions)}
    archived = f"{made.root}-archive"
    archive(stage, orders, archived, ends, monkeypatch)
    forget(stage, made.source, [end - 50 for end in ends])
    told = ["--history", f"orders={archived}", "--offsets", "orders=kafka_partition,kafka_offset"]
    until = ["--until", ",".join(f"{split}={cut}" for split, cut in cuts.items())]
    looked = here("check", path, "--backfill", *told, *until, "--json").value
    wanted = {f"{made.source}-{p}": {"from": 0, "to": end} for p, end in enumerate(ends)}
    assert (looked["ok"], looked["tables"]["orders"]) == (True, wanted)
    uri = f"{made.root}-savepoint"
    given = here("backfill", path, "--to", uri, *until, "--parts", 3, *told, "--json").value
    assert given["rows"] == sum(cuts.values()), "fifty rows of each partition are in both, and count once"
    assert {split: state["offset"] for split, state in given["positions"]["orders"].items()} == cuts
    assert here("run", path, "--from", uri, "--cluster", shared.rest_url, "--json").value["state"] == "FINISHED"
    found = verdict(orders, read_windows(stage.bootstrap, made.sink))
    assert found.exact, found
    early = ",".join(f"{split}={end - 51 if split[-1] == '2' else end}" for split, end in zip(cuts, ends, strict=True))
    refused = here("check", path, "--backfill", *told, "--until", early, code=2)
    lies = f"the end position is before the first record of '{made.source}-2': offsets below {ends[2] - 50} are deleted"
    assert lies in " ".join(str(refused).replace("\\n", " ").split())
    forget(stage, made.source, [ends[0] + 3, ends[1], ends[2], ends[3]])
    refused = here("check", path, "--backfill", *told, *until, code=2)
    gap = f"offsets {ends[0]} to {ends[0] + 2} of '{made.source}-0' are neither in the table nor in the topic"
    assert gap in " ".join(str(refused).replace("\\n", " ").split())


def test_a_topic_whose_beginning_is_an_iceberg_table(stage, shared, here, job, monkeypatch):
    orders, made, path = job
    ends = [500, 600, 700, 800]
    reached = {
        "uri": f"sqlite:///{stage.folder}/lake.db",
        "s3.endpoint": stage.minio.url,
        "s3.access-key-id": stage.minio.access_key,
        "s3.secret-access-key": stage.minio.secret_key,
        "s3.region": "us-east-1",
    }
    with closing(SqlCatalog("lake", warehouse=f"{made.root}-lake", **reached)) as lake:
        lake.create_namespace("shop")
        parts = list(parts_of(orders, ends))
        table = lake.create_table("shop.orders", parts[0].schema)
        for part in parts:
            table.append(part)
    forget(stage, made.source, [end - 50 for end in ends])
    for name, value in reached.items():
        key = name.upper().replace("-", "_").replace(".", "__")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
    assert table.metadata_location.startswith("s3://")
    offsets = ["--offsets", "orders=kafka_partition,kafka_offset"]
    until = ["--until", ",".join(f"{made.source}-{p}=1200" for p in range(orders.partitions))]
    uri = f"{made.root}-savepoint"
    named = ["--history", "orders=iceberg://lake/shop.orders"]
    check = ("check", path, "--backfill", *named, *offsets, *until, "--json")  # a catalog is read once in a process
    looked = cli(*check, cwd=stage.folder, environment=stage.environment).value
    wanted = {f"{made.source}-{p}": {"from": 0, "to": end} for p, end in enumerate(ends)}
    assert (looked["ok"], looked["tables"]["orders"]) == (True, wanted)
    known = f"orders={table.metadata_location}"
    given = here("backfill", path, "--to", uri, *until, "--parts", 3, "--history", known, *offsets, "--json").value
    assert given["rows"] == orders.partitions * 1_200
    assert given["tables"]["orders"] == {f"{made.source}-{p}": [0, end] for p, end in enumerate(ends)}
    assert here("run", path, "--from", uri, "--cluster", shared.rest_url, "--json").value["state"] == "FINISHED"
    found = verdict(orders, read_windows(stage.bootstrap, made.sink))
    assert found.exact, found


def test_a_table_without_offsets_up_to_where_it_is_told(stage, shared, here, job, monkeypatch):
    orders, made, path = job
    archived, ends = f"{made.root}-archive", [700] * orders.partitions
    archive(stage, orders, archived, ends, monkeypatch, offsets=False)
    forget(stage, made.source, ends)
    over = ["--cut-over", ",".join(f"{made.source}-{p}=700" for p in range(orders.partitions)), "--until", "cut-over"]
    uri = f"{made.root}-savepoint"
    here("backfill", path, "--to", uri, "--history", f"orders={archived}", code=2)
    given = here("backfill", path, "--to", uri, "--history", f"orders={archived}", *over, "--json").value
    assert (given["rows"], given["watermark"], given["staged_rows"]) == (4 * 700, None, 0)
    assert here("run", path, "--from", uri, "--cluster", shared.rest_url, "--json").value["state"] == "FINISHED"
    found = verdict(orders, read_windows(stage.bootstrap, made.sink))
    assert found.exact, found


def test_a_time_of_writing_up_to_which_a_table_was_kept(stage, shared, here, monkeypatch):
    orders, half = Orders(9, 4_000), 2_000
    source, sink, name = stage.fresh("orders"), stage.fresh("totals"), stage.fresh("job")
    stamped = NewTopic(source, orders.partitions, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.create_topics([stamped])[source].result(60)
    create_topics(stage.bootstrap, **{sink: 2})
    moment = None
    for low in (0, half):
        produce(stage, source, orders, low, low + half)
        if moment is None:  # the broker stamps in milliseconds: the first one that it has not begun yet
            moment = datetime.now(UTC) + timedelta(milliseconds=1)
            moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
            wait_until(lambda after=moment: datetime.now(UTC) > after, "the next millisecond", step=0)
    made = Job(name, stage.bootstrap, source, sink, stage.root(name), stops=orders.stops(source))
    path, archived, uri = made.write(stage.folder), f"{made.root}-archive", f"{made.root}-savepoint"
    archive(stage, orders, archived, [half // orders.partitions] * orders.partitions, monkeypatch, offsets=False)
    told = ["--history", f"orders={archived}", "--cut-over", moment.isoformat()]
    until = ",".join(f"{source}-{p}=800" for p in range(orders.partitions))
    given = here("backfill", path, "--to", uri, *told, "--until", until, "--json").value
    assert given["rows"] == 4 * 800
    assert given["staged_rows"] > 0, "each partition has rows behind the cut-over"
    assert here("run", path, "--from", uri, "--cluster", shared.rest_url, "--json").value["state"] == "FINISHED"
    found = verdict(orders, read_windows(stage.bootstrap, made.sink))
    assert found.exact, found


def produce(stage, topic, orders, low, high):
    """Send some orders, and wait until the broker has them."""
    users, amounts, times_ms = (column.tolist() for column in orders.columns())
    producer = Producer({"bootstrap.servers": stage.bootstrap, "enable.idempotence": True})
    for i in range(low, high):
        value = b'{"user_id":%d,"amount":%d,"ts":%d}' % (users[i], amounts[i], times_ms[i])
        producer.produce(topic, value, partition=i % orders.partitions)
    assert producer.flush(60) == 0
