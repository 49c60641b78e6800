"""Avro files that end where they should, and all that end earlier."""

import io

import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile

from penstock.backfill.iceberg import require_whole


@pytest.fixture
def written(tmp_path):
    """Write a list of manifests with so many entries; return its bytes."""

    def write(entries):
        path = tmp_path / "list.avro"
        output = PyArrowFileIO().new_output(str(path))
        schema = MANIFEST_LIST_FILE_SCHEMAS[2]
        manifest = ManifestFile.from_args(
            manifest_path="m.avro", manifest_length=5, partition_spec_id=0, content=ManifestContent.DATA,
            sequence_number=1, min_sequence_number=1, added_snapshot_id=1, added_files_count=1, existing_files_count=0,
            deleted_files_count=0, added_rows_count=1, existing_rows_count=0, deleted_rows_count=0, partitions=[],
            key_metadata=None,
        )  # fmt: skip
        with AvroOutputFile[ManifestFile](output, file_schema=schema, schema_name="manifest_file") as file:
            for _ in range(entries):
                file.write_block([manifest])
        return path.read_bytes()

    return write


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_a_file_with_all_its_blocks_is_whole(written, entries):
    require_whole(written(entries))


def test_every_cut_but_those_between_blocks_is_seen(written):
    data = written(2)
    whole = []
    for length in range(len(data)):
        try:
            require_whole(data[:length])
        except ValueError:
            continue
        whole.append(length)
    assert whole == [len(written(0)), len(written(1))]


def test_another_file_is_refused():
    with pytest.raises(ValueError, match="not an Avro file"):
        require_whole(io.BytesIO(b"PAR1").read())
