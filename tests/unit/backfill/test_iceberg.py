"""Snapshots of Iceberg tables in the place of a history's first part, written by pyiceberg."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyiceberg.types import LongType
from tests.spark.golden import Golden
from tests.unit.backfill.conftest import ROWS, rows

import penstock as ps
from penstock.backfill.engine import LocalEngine
from penstock.backfill.histories import TableHistory
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.backfill.table_plan import Offsets, open_table
from penstock.connector.staging import decode_chunk
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError
from penstock.core.rand import SystemRand
from penstock.core.schema import schema_to_text
from penstock.snapshots.access.opening import open_snapshot
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import ORDER_SCHEMA
from penstock_connectors.files import FileSink

CUTS = (50, 60, 70)
OFFSETS = Offsets(partition="partition", offset="offset")


def test_snapshots_are_what_the_table_was(table):
    table.append(ROWS)
    older = table.current_snapshot().snapshot_id
    table.overwrite(ROWS.slice(0, 1))
    where = table.metadata_location
    assert (rows(where), rows(f"{where}?snapshot={older}")) == (1, 4)
    assert open_table("table", (where,), ROWS.schema, None).uris == (
        f"{where}?snapshot={table.current_snapshot().snapshot_id}",
    )
    with pytest.raises(UsageError, match="has no snapshot 7"):
        rows(f"{where}?snapshot=7")


def test_a_renamed_column_is_refused_and_an_added_one_is_null(table):
    with table.update_schema() as change:
        change.add_column("b", LongType())
    both = pa.schema({"a": pa.int64(), "b": pa.int64()})
    assert rows(table.metadata_location, both) == 2
    with pytest.raises(UsageError, match="older than column 'b', which would be null"):
        rows(table.metadata_location, pa.schema([pa.field("b", pa.int64(), nullable=False)]))
    with table.update_schema() as change:
        change.rename_column("a", "c")
    with pytest.raises(UsageError, match=r"parquet: column 'c' was 'a' when it was written"):
        rows(table.metadata_location, pa.schema({"c": pa.int64()}))
    then = f"{table.metadata_location}?snapshot={table.current_snapshot().snapshot_id}"
    assert rows(then) == 2, "the columns are those of the snapshot that is named"


def archived(lake, golden, ends):
    """Append the rows of each split before `ends` to a table; return it."""
    golden.archive(ends)
    parts = [pq.read_table(golden.folder / "table-orders" / f"part-{split}.parquet") for split in range(3)]
    made = lake.create_table("shop.orders", parts[0].schema)
    for part in parts:
        made.append(part)
    return made


def test_stitched_with_its_source_it_is_the_source_alone(lake, tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path, rows=300)
    made = archived(lake, golden, (40, 40, 40))
    known = TableHistory(uid="orders", uris=(made.metadata_location,), offsets=OFFSETS)
    plain = golden.backfill(monkeypatch, LocalEngine(), CUTS, "plain")
    stitched = golden.backfill(monkeypatch, LocalEngine(), CUTS, "stitched", tables=(known,))
    assert stitched.tables["orders"] == {f"orders-{split}": (0, 40) for split in range(3)}
    assert golden.staged(stitched.uri) == golden.staged(plain.uri)
    assert stitched.histories["orders"][0].endswith(str(made.current_snapshot().snapshot_id))


class NotedSource(DatagenSource):
    """Orders of which the newer ones have a note."""

    row_schema = ORDER_SCHEMA.append(pa.field("note", pa.int64()))

    def spec(self):
        return replace(super().spec(), schema=schema_to_text(self.row_schema))


def test_rows_older_than_a_column_come_out_with_nulls(lake, tmp_path):
    made = archived(lake, Golden("windows", tmp_path), (10, 10, 10))
    with made.update_schema() as change:
        change.add_column("note", LongType())
    newer = made.scan().to_arrow()
    newer = newer.set_column(4, "offset", pa.array([at + 10 for at in newer["offset"].to_pylist()]))
    made.append(newer.drop_columns("note").append_column("note", newer["amount"]))
    env = ps.Environment(parallelism=2, checkpoint_interval="1s")
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness(1, timestamp="ts")
    orders = env.from_source(NotedSource(rows=100, splits=3), watermarks=strategy, uid="orders")
    first = orders.key_by("note").deduplicate(keep="first").uid("first")
    for uid, stream in (("all", orders), ("firsts", first)):
        stream.sink_to(FileSink(str(tmp_path / uid), format="jsonl"), uid=uid)
    known = TableHistory(uid="orders", uris=(made.metadata_location,), offsets=OFFSETS)
    options = BackfillOptions(
        target=str(tmp_path / "savepoint"), until={"begin": True}, tables=(known,), accept=("first",)
    )
    given = Backfill(env.job_graph(), options, SystemClock(), SystemRand()).run(LocalEngine(), lambda *_: None)
    snapshot = open_snapshot(given.uri)
    notes = {"all": [], "firsts": []}
    for output in snapshot.manifest.pending:
        for ref in output.files:
            notes[output.uid] += decode_chunk(snapshot.read(ref))["note"].to_pylist()
    told = newer["amount"].to_pylist()
    assert Counter(notes["all"]) == Counter([None] * 30 + told)
    assert Counter(notes["firsts"]) == Counter({None, *told})


def test_the_folder_s_hint_tells_which_metadata_is_current(table, tmp_path):
    older = table.metadata_location
    table.append(ROWS)
    with pytest.raises(UsageError, match=r"does not name its current metadata: it has no metadata/version-hint"):
        rows(table.location())
    folder = tmp_path / "lake" / "shop" / "rows"
    hint = folder / "metadata" / "version-hint.text"
    hint.write_text(older.rpartition("/")[2].removesuffix(".metadata.json"))
    assert rows(table.location()) == 2
    hint.write_text("7\n")
    (folder / "metadata" / "v7.metadata.json").write_bytes(table.io.new_input(table.metadata_location).open().read())
    assert rows(str(folder)) == 4
    assert rows(f"{folder}?snapshot={table.metadata.snapshots[0].snapshot_id}") == 2
    hint.write_text("8")
    with pytest.raises(UsageError, match=r"there is no .*v8\.metadata\.json"):
        rows(str(folder))
    hint.write_bytes(b"\xff7")
    with pytest.raises(UsageError, match=r"there is no .*7\.metadata\.json"):
        rows(str(folder))
