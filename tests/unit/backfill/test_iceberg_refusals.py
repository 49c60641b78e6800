"""What a snapshot of an Iceberg table has that a backfill cannot read is refused: one line, with the file."""

import gzip
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.typedef import Record
from tests.unit.backfill.conftest import ROWS, rows

from penstock.core.errors import ConnectorError, UsageError


def add(table, path, **about):
    """Have the table name one more file, as engines do that write files pyiceberg cannot."""
    size = {"record_count": 1, "file_size_in_bytes": path.stat().st_size}
    file = DataFile.from_args(
        **{"content": DataFileContent.DATA, "file_format": FileFormat.PARQUET, "partition": Record(), **size, **about},
        file_path=f"file://{path}", column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
        lower_bounds={}, upper_bounds={},
    )  # fmt: skip
    file.spec_id = table.spec().spec_id
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def test_deleted_rows(table, tmp_path, monkeypatch):
    (found,) = table.inspect.files()["file_path"].to_pylist()
    deletes = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [found], "pos": pa.array([0], pa.int64())}), deletes)
    with monkeypatch.context() as patch:
        patch.setattr(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES)
        add(table, deletes, content=DataFileContent.POSITION_DELETES)
    assert table.scan().to_arrow()["a"].to_pylist() == [2], "the file of deletes is one"
    with pytest.raises(UsageError, match=r"has rows that are deleted by .*/deletes\.parquet"):
        rows(table.metadata_location)


def test_files_that_are_not_parquet(table, tmp_path):
    (tmp_path / "rows.orc").write_bytes(b"ORC")
    add(table, tmp_path / "rows.orc", file_format=FileFormat.ORC)
    with pytest.raises(UsageError, match=r"has .*/rows\.orc, which is ORC"):
        rows(table.metadata_location)


def test_files_without_field_ids(table, tmp_path):
    pq.write_table(ROWS, tmp_path / "outside.parquet")
    table.add_files([f"file://{tmp_path}/outside.parquet"])
    assert table.scan().to_arrow().num_rows == 4, "its mapping of names has pyiceberg read it"
    with pytest.raises(
        UsageError, match=r"/outside\.parquet: its columns have no field ids, as the file was added from outside"
    ):
        rows(table.metadata_location)


def test_values_that_only_partitions_tell(lake, tmp_path):
    both = pa.schema({"a": pa.int64(), "day": pa.int32()})
    table = lake.create_table("shop.days", both)
    with table.update_spec() as change:
        change.add_identity("day")
    path = tmp_path / "day.parquet"
    pq.write_table(ROWS.cast(pa.schema([schema_to_pyarrow(table.schema()).field("a")])), path)
    add(table, path, partition=Record(20_000))
    assert table.scan().to_arrow()["day"].to_pylist() == [20_000] * 2, "the partition tells it"
    with pytest.raises(UsageError, match=r"/day\.parquet has no column 'day': only its partition has the values"):
        rows(table.metadata_location, both)
    assert rows(table.metadata_location) == 2, "a column that nobody wants may lie anywhere"


def test_pyiceberg_that_is_not_there(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    for uri in (table.metadata_location, "iceberg://lake/shop.rows"):
        with pytest.raises(UsageError, match="is an Iceberg table") as refused:
            rows(uri)
        assert refused.value.hint.startswith("pip install 'pyiceberg")


def test_files_of_the_table_itself_that_are_cut_short_or_gone(table, tmp_path):
    folder = tmp_path / "lake" / "shop" / "rows" / "metadata"
    snapshot = table.current_snapshot().snapshot_id
    for manifests in (folder.glob("snap-*.avro"), folder.glob("*-m0.avro")):
        (path,) = manifests
        whole = path.read_bytes()
        path.write_bytes(whole[:-30])
        with pytest.raises(ConnectorError, match=rf"{snapshot}: its list of files cannot be read: "):
            rows(table.metadata_location)
        path.unlink()
        with pytest.raises(ConnectorError, match=rf"{snapshot}: its list of files cannot be read: "):
            rows(table.metadata_location)
        path.write_bytes(whole)
    for name in ("cut.metadata.json", "cut.gz.metadata.json"):
        data = table.metadata.model_dump_json().encode()
        (folder / name).write_bytes((gzip.compress(data) if "gz" in name else data)[:-20])
        with pytest.raises(ConnectorError, match=rf"{name} is not the metadata of an Iceberg table: "):
            rows(f"{folder}/{name}")
