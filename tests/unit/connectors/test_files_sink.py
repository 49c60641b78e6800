"""The file sink: every part once, whoever publishes it how often."""

import json
import os

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from penstock.connector.sink import SinkContext, load_factory
from penstock.connector.staging import encode_chunk
from penstock.core import failpoints
from penstock.core.clock import ManualClock
from penstock.core.errors import ConnectorError, GraphError
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable, FileRef
from penstock_connectors.files import FileSink
from penstock_connectors.files.sink import part_name

SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("window_end", pa.timestamp("us", tz="UTC")),
        pa.field("name", pa.string()),
    ]
)
PERMIT = CommitPermit("job", "run1", 1, 7, 7)


def rows(*users):
    columns = [pa.array(users, pa.int64()), pa.array([u * 1_000_000 for u in users], SCHEMA.field(1).type)]
    return pa.record_batch([*columns, pa.array([f"n{u}" for u in users])], schema=SCHEMA)


class Staged:
    """Staged files in memory."""

    def __init__(self):
        self.files = {}

    def committable(self, checkpoint, *chunks, subtask=0):
        refs = []
        for number, chunk in enumerate(chunks):
            path = f"{checkpoint}/{subtask}/{number}"
            self.files[path] = encode_chunk(SCHEMA, [chunk])
            refs.append(FileRef(path=path))
        return Committable(
            id=f"my/out/run1/{subtask}/{checkpoint}",
            uid="my/out",
            run_id="run1",
            subtask=subtask,
            checkpoint_id=checkpoint,
            files=tuple(refs),
            rows=sum(c.num_rows for c in chunks),
        )

    def read(self, file):
        return self.files[file.path]


@pytest.fixture
def staged():
    return Staged()


def committer_of(sink):
    spec = sink.spec(SCHEMA)
    assert spec.delivery == "exactly-once"
    factory = load_factory(spec.factory)
    context = SinkContext("job", "my/out", "run1", 0, 1, 1, ManualClock())
    assert factory.create_writer(spec, context) is None
    return factory.create_committer(spec, context)


def test_every_chunk_becomes_one_part_in_order(tmp_path, staged):
    committer = committer_of(FileSink(tmp_path / "out"))
    outcomes = committer.commit(
        PERMIT, (staged.committable(7, rows(3)), staged.committable(6, rows(1), rows(2))), staged.read
    )
    assert [(o.committable_id[-1], o.resolution, o.rows) for o in outcomes] == [
        ("6", "published", 2),
        ("7", "published", 1),
    ]
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == [f"part-my~2f~out-run1-0-{end}.parquet" for end in ("6-0", "6-1", "7-0")]
    assert sorted(pl.read_parquet(tmp_path / "out" / "*.parquet")["user_id"]) == [1, 2, 3]


def test_publishing_again_leaves_the_first_file_untouched(tmp_path, staged):
    committer, committable = committer_of(FileSink(tmp_path)), staged.committable(1, rows(1))
    committer.commit(PERMIT, (committable,), staged.read)
    (part,) = tmp_path.iterdir()
    before = part.stat()
    (outcome,) = committer.recover(PERMIT, ("job.my/out.run1.",), (committable,), staged.read)
    assert outcome.resolution == "already-published"
    assert (part.stat().st_ino, part.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_recovery_publishes_the_chunks_that_are_owed(tmp_path, staged, monkeypatch):
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "sink.between_chunks=error")
    monkeypatch.setenv("PENSTOCK_FAILPOINT_DIR", str(tmp_path / "evidence"))
    failpoints.reset()
    sink, committable = FileSink(tmp_path / "out"), staged.committable(1, rows(1), rows(2))
    with pytest.raises(failpoints.FailpointError):
        committer_of(sink).commit(PERMIT, (committable,), staged.read)
    assert len(list((tmp_path / "out").iterdir())) == 1
    monkeypatch.delenv("PENSTOCK_FAILPOINTS")
    failpoints.reset()
    (outcome,) = committer_of(sink).recover(PERMIT, (), (committable,), staged.read)
    assert outcome.resolution == "published"
    assert sorted(pl.read_parquet(tmp_path / "out" / "*.parquet")["user_id"]) == [1, 2]


def test_two_publishers_at_once_leave_one_file(tmp_path, staged):
    committable = staged.committable(1, rows(1))
    late, first = (committer_of(FileSink(tmp_path)) for _ in range(2))

    def overtaken(file):
        first.commit(PERMIT, (committable,), staged.read)
        return staged.read(file)

    (outcome,) = late.commit(PERMIT, (committable,), overtaken)
    assert outcome.resolution == "already-published"
    assert len(list(tmp_path.iterdir())) == 1, "no hidden file stays behind"


def test_recovery_clears_what_a_killed_publisher_left(tmp_path, staged):
    committable = staged.committable(1, rows(1))
    (tmp_path / ".part-my~2f~out-run1-0-1-0.parquet.0").write_bytes(b"half")
    committer_of(FileSink(tmp_path)).recover(PERMIT, (), (committable,), staged.read)
    assert [p.name for p in tmp_path.iterdir()] == ["part-my~2f~out-run1-0-1-0.parquet"]


def test_a_late_publisher_never_links_what_the_recovery_is_still_writing(tmp_path, staged, monkeypatch):
    """Paused before its link, it goes on when the recovery has cleared its file and was killed half through its own."""
    committable, link = staged.committable(1, rows(1)), os.link
    late, recovering = (committer_of(FileSink(tmp_path)) for _ in range(2))

    def killed(descriptor):
        os.ftruncate(descriptor, 4)
        raise KeyboardInterrupt

    def resumed(source, target):
        monkeypatch.setattr(os, "link", link)
        monkeypatch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            recovering.recover(PERMIT, (), (committable,), staged.read)
        link(source, target)

    monkeypatch.setattr(os, "link", resumed)
    with pytest.raises(ConnectorError, match="cannot be written"):
        late.commit(PERMIT, (committable,), staged.read)
    monkeypatch.undo()
    committer_of(FileSink(tmp_path)).recover(PERMIT, (), (committable,), staged.read)
    (part,) = tmp_path.iterdir()
    assert pl.read_parquet(part)["user_id"].to_list() == [1]


def test_sinks_whose_uids_are_alike_do_not_share_a_part(staged):
    one, other = staged.committable(1, rows(1)), msgspec.structs.replace(staged.committable(1, rows(1)), uid="my_out")
    third = msgspec.structs.replace(one, uid="my-out")
    assert len({part_name(c, 0, "parquet") for c in (one, other, third)}) == 3


def test_json_lines_and_arrow(tmp_path, staged):
    committable = staged.committable(1, rows(1, 2))
    for file_format in ("jsonl", "arrow"):
        committer_of(FileSink(tmp_path, format=file_format)).commit(PERMIT, (committable,), staged.read)
    lines = (tmp_path / "part-my~2f~out-run1-0-1-0.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert len(lines) == 2
    assert (first["user_id"], first["name"]) == (1, "n1")
    assert first["window_end"].startswith("1970-01-01T00:00:01")
    assert pl.read_ipc(tmp_path / "part-my~2f~out-run1-0-1-0.arrow")["user_id"].to_list() == [1, 2]


def test_a_folder_that_cannot_be_written_is_refused_before_the_start(tmp_path):
    (tmp_path / "file").write_text("in the way")
    spec = FileSink(tmp_path / "file" / "out").spec(SCHEMA)
    with pytest.raises(ConnectorError, match="cannot be created"):
        load_factory(spec.factory).validate(spec, None)


def test_wrong_settings_are_refused_when_the_job_is_built(tmp_path):
    with pytest.raises(GraphError, match="unknown format 'xlsx'"):
        FileSink(tmp_path, format="xlsx").spec(SCHEMA)
    with pytest.raises(GraphError, match="not a local folder"):
        FileSink("s3://bucket/out").spec(SCHEMA)


def test_the_spec_is_json(tmp_path):
    spec = FileSink(tmp_path).spec(SCHEMA)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=type(spec)) == spec
