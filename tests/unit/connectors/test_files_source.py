"""The file source: every row once, from any position; bad lines by policy."""

import datetime as dt
import json
import os
import re

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connector.sink import load_factory
from penstock.connector.source import SourceContext, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.errors import BadRecordError, ConnectorError, GraphError, UsageError
from penstock.core.schema import Schema
from penstock_connectors.files import FileSource, source
from penstock_connectors.files.source import FileSourceFactory
from penstock_connectors.formats.decoded import excerpt


class Order(Schema):
    user_id: int
    amount: int | None
    note: str


ROWS = [{"user_id": i, "amount": None if i % 7 == 0 else i * 2, "note": f"n{i}"} for i in range(100)]


def write(path, file_format, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    if file_format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file_format == "csv":
        lines = ["note,user_id,amount,unused"]
        lines += [f"{r['note']},{r['user_id']},{'' if r['amount'] is None else r['amount']},x" for r in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=30)


def open_reader(source, splits=None, factory=None):
    spec = source.spec()
    factory = factory or load_factory(spec.factory)
    reader = factory.create_reader(spec, SourceContext(0, 1, "job", "uid", ManualClock()))
    if splits is None:
        splits = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    reader.add_splits(splits)
    return reader


def drain(reader, max_rows=16, polls=1000):
    found, letters = [], []
    for _ in range(polls):
        result = reader.poll(max_rows)
        for batch in result.batches:
            assert batch.data.schema == Order.arrow_schema()
            found += batch.data.to_pylist()
            letters += [] if batch.dead_letters is None else batch.dead_letters.to_pylist()
        if not result.batches and not result.finished:
            break
    return found, letters


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_all_rows_are_read_in_order(tmp_path, file_format):
    write(tmp_path / "in", file_format)
    found, _ = drain(open_reader(FileSource(tmp_path / "in", Order, format=file_format)))
    assert found == ROWS


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("polls", [0, 1, 3, 6])
def test_reading_resumes_at_a_position_without_loss_or_repetition(tmp_path, file_format, polls):
    write(tmp_path / "in", file_format)
    source = FileSource(tmp_path / "in", Order, format=file_format)
    reader = open_reader(source)
    before = [row for _ in range(polls) for b in reader.poll(16).batches for row in b.data.to_pylist()]
    state = msgspec.json.decode(msgspec.json.encode(reader.snapshot()), type=tuple[SourceSplit, ...])
    reader.close()
    after, _ = drain(open_reader(source, state))
    assert before + after == ROWS


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_a_file_that_was_finished_is_not_read_again(tmp_path, file_format):
    write(tmp_path / "in", file_format)
    source = FileSource(tmp_path / "in", Order, format=file_format)
    reader = open_reader(source)
    drain(reader)
    assert [s.finished for s in reader.snapshot()] == [True]
    assert drain(open_reader(source, reader.snapshot())) == ([], [])


def test_a_folder_gives_one_split_a_file_and_hidden_files_are_left_out(tmp_path):
    for name in ("b.jsonl", "a.jsonl", ".c.jsonl"):
        write(tmp_path / name, "jsonl")
    spec = FileSource(tmp_path, Order).spec()
    assert spec.bounded
    enumerator = load_factory(spec.factory).create_enumerator(spec, first_run=True)
    assert [s.id for s in enumerator.discover(frozenset())] == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    write(tmp_path / "d.jsonl", "jsonl")
    assert enumerator.discover(frozenset({"a"})) == (), "bounded: files are listed once"


def test_files_that_appeared_or_grew_after_the_first_start_are_named(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, "jsonl", ROWS[:1])
    spec = FileSource(tmp_path, Order).spec()
    factory = FileSourceFactory()
    listed = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    assert factory.unread(spec, listed) == ""
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("12345")
    assert factory.unread(spec, listed) == (
        f"{tmp_path / 'a.jsonl'} has grown since the job began: 5 bytes more are not read"
    )
    for name in ("c.jsonl", "d.jsonl", "e.jsonl"):
        (tmp_path / name).write_text("123456789")
    (tmp_path / "b.jsonl").unlink()
    news = factory.unread(spec, listed)
    assert f"; {tmp_path / 'c.jsonl'} is new since the job began: its 9 bytes are not read; " in news
    assert news.endswith("; 1 more file with 9 bytes")


def test_many_files_are_read_side_by_side(tmp_path):
    for number in range(40):
        write(tmp_path / f"{number:02}.jsonl", "jsonl", ROWS[:5])
    found, _ = drain(open_reader(FileSource(str(tmp_path / "*.jsonl"), Order)), max_rows=64)
    assert len(found) == 200


BAD = {
    "jsonl": [
        '{"user_id": 1, "note": "a"}',
        "nonsense",
        "",
        '{"user_id": null, "note": "b"}',
        '{"user_id": 4, "note": "c"}',
    ],
    "csv": ["user_id,amount,note", "1,,a", "x,1,b", ",1,b", "4,1,c"],
}


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_bad_lines_fail_by_default_and_say_where(tmp_path, file_format):
    (tmp_path / "in").write_text("\n".join(BAD[file_format]))
    reader = open_reader(FileSource(tmp_path / "in", Order, format=file_format))
    with pytest.raises(BadRecordError, match=r"in line [23]: ") as raised:
        drain(reader)
    assert raised.value.values.startswith("line: b'")
    reader.close()


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_bad_lines_can_be_skipped_and_are_counted(tmp_path, file_format):
    (tmp_path / "in").write_text("\n".join(BAD[file_format]))
    reader = open_reader(FileSource(tmp_path / "in", Order, format=file_format, on_bad_record="skip"))
    found, letters = drain(reader)
    assert [row["user_id"] for row in found] == [1, 4]
    assert letters == []
    result = reader.poll(1)
    assert result.metrics["badRecords"] == 2
    line = {"jsonl": 2, "csv": 3}[file_format]
    assert result.bad_record.where.startswith(f"{tmp_path / 'in'} line {line}: ")


@pytest.mark.parametrize(
    ("file_format", "line"),
    [
        ("csv", "1,hidden,a"),
        ("csv", "1,2,hidden,4"),
        ("jsonl", '{"user_id": 1, "amount": 98765432109876543210, "note": ""}'),
    ],
)
def test_the_reason_of_a_bad_line_has_none_of_its_values(tmp_path, file_format, line):
    (tmp_path / "in").write_text(f"user_id,amount,note\n{line}\n" if file_format == "csv" else line)
    reader = open_reader(FileSource(tmp_path / "in", Order, format=file_format))
    with pytest.raises(BadRecordError) as raised:
        drain(reader)
    assert not re.search("hidden|98765", raised.value.message)
    assert re.search("hidden|98765", raised.value.values)
    reader.close()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b'{"password": "' + b"x" * 100 + b'", "b": 2}', """b'{"password": ******, "b": 2}'"""),
        (b"\xff" + "ü".encode(), r"b'\xff\xc3\xbc'"),
        (b"x" * 81, f"b'{'x' * 80}'..."),
    ],
)
def test_a_bad_line_is_shown_without_secrets(line, shown):
    assert excerpt(line) == shown


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_lines_are_numbered_for_the_first_bad_one_alone(tmp_path, monkeypatch, policy):
    numbered = []
    monkeypatch.setattr(source, "line_number", lambda path, offset: numbered.append(offset) or 1)
    (tmp_path / "in").write_text("no row\n" * 5)
    reader = open_reader(FileSource(tmp_path / "in", Order, on_bad_record=policy))
    for _ in range(5):
        reader.poll(1)
    assert reader.poll(1).metrics["badRecords"] == 5
    assert numbered == [0]


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_bad_lines_can_be_dead_letters(tmp_path, file_format):
    text = "\n".join(BAD[file_format])
    (tmp_path / "in").write_text(text)
    _, letters = drain(open_reader(FileSource(tmp_path / "in", Order, format=file_format, on_bad_record="dead-letter")))
    assert [text.encode()[x["offset"] :].startswith(x["value"]) for x in letters] == [True, True]
    assert letters[0]["value"] == BAD[file_format][1 if file_format == "jsonl" else 2].encode()
    assert {x["topic"] for x in letters} == {str(tmp_path / "in")}


def test_a_secret_in_a_bad_line_is_not_shown_even_if_its_end_is_cut(tmp_path):
    (tmp_path / "in").write_text('{"user_id": "x", "note": "' + "n" * 20 + '", "password": "hunter2-' + "y" * 60 + '"}')
    reader = open_reader(FileSource(tmp_path / "in", Order))
    with pytest.raises(BadRecordError) as raised:
        drain(reader)
    reader.close()
    assert "hunter2" not in raised.value.values


def test_a_long_line_and_windows_line_ends(tmp_path):
    long = {"user_id": 1, "amount": 1, "note": "x" * (5 << 20)}
    (tmp_path / "in").write_bytes(b"".join(json.dumps(r).encode() + b"\r\n" for r in (ROWS[1], long, ROWS[2])))
    found, _ = drain(open_reader(FileSource(tmp_path / "in", Order)))
    assert [row["user_id"] for row in found] == [1, 1, 2]


def test_a_file_that_grew_is_read_to_its_first_size_and_one_that_shrank_is_refused(tmp_path):
    write(tmp_path / "in", "jsonl")
    source = FileSource(tmp_path / "in", Order)
    reader = open_reader(source)
    with (tmp_path / "in").open("a") as file:
        file.write("more\n")
    assert drain(reader)[0] == ROWS
    reader = open_reader(source)
    (tmp_path / "in").write_text("")
    with pytest.raises(ConnectorError, match="files must not change"):
        drain(reader)


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_few_rows_at_a_time_do_not_read_the_file_again_and_again(tmp_path, file_format):
    write(tmp_path / "in", file_format, ROWS * 50)
    reader = open_reader(FileSource(tmp_path / "in", Order, format=file_format))
    (batch,) = reader.poll(1).batches
    assert batch.data.num_rows == 1
    (tmp_path / "in").write_bytes(b"")  # what stands in the block that was read is enough
    assert drain(reader, max_rows=7)[0] == (ROWS * 50)[1:]


@pytest.mark.parametrize("left", [0, 1, 5], ids=["nothing", "whole lines", "half a line"])
def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path, left):
    """Neither taken for read to its end nor asked for the missing bytes for ever."""
    write(tmp_path / "in", "jsonl")
    reader = open_reader(FileSource(tmp_path / "in", Order), factory=FileSourceFactory(block_bytes=16))
    assert reader.poll(1).batches[0].data.num_rows == 1
    lines = (tmp_path / "in").read_bytes().splitlines(keepends=True)
    os.truncate(tmp_path / "in", len(lines[0]) + left if left != 1 else len(lines[0] + lines[1]))
    with pytest.raises(ConnectorError, match="files must not change"):
        drain(reader)
    reader.close()


def test_a_parquet_file_that_was_replaced_is_refused(tmp_path):
    write(tmp_path / "in", "parquet")
    reader = open_reader(FileSource(tmp_path / "in", Order, format="parquet"))
    (tmp_path / "in").write_bytes((tmp_path / "in").read_bytes() + b"x")
    with pytest.raises(ConnectorError, match="files must not change"):
        drain(reader)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ConnectorError, match="no file at"):
        load_factory(FileSource("x", Order).spec().factory).validate(FileSource(tmp_path / "nope", Order).spec())
    (tmp_path / "a.csv").write_text("user_id,amount\n1,2\n")
    spec = FileSource(tmp_path / "a.csv", Order, format="csv").spec()
    with pytest.raises(ConnectorError, match="has no column note"):
        load_factory(spec.factory).validate(spec)
    (tmp_path / "b.parquet").write_bytes(b"not parquet")
    spec = FileSource(tmp_path / "b.parquet", Order, format="parquet").spec()
    with pytest.raises(ConnectorError, match="cannot be read"):
        load_factory(spec.factory).validate(spec)


def test_wrong_settings_are_refused_when_the_job_is_built():
    for wrong in ({"format": "xml"}, {"on_bad_record": "cry"}, {"path": "s3://b/x"}, {"timestamp_unit": "ns"}):
        with pytest.raises(GraphError):
            FileSource(**({"path": "x", "schema": Order} | wrong)).spec()


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_unit_of_times_is_for_json_alone(file_format):
    with pytest.raises(GraphError, match=f"timestamp_unit='s' is for format='jsonl', not '{file_format}'") as caught:
        FileSource("x", Order, format=file_format, timestamp_unit="s").spec()
    assert caught.value.hint == "declare the field as int and set unit='s' on the watermark strategy"


@pytest.mark.parametrize(("unit", "number"), [("auto", 1_714_557_600_000), ("s", 1_714_557_600)])
def test_integers_are_times_in_the_unit_of_the_source(tmp_path, unit, number):
    class Event(Schema):
        ts: dt.datetime

    (tmp_path / "in").write_text(f'{{"ts": {number}}}\n')
    reader = open_reader(FileSource(tmp_path / "in", Event, timestamp_unit=unit))
    (batch,) = reader.poll(10).batches
    reader.close()
    assert batch.data.to_pylist() == [{"ts": dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)}]


def test_the_source_of_an_earlier_version_had_no_unit(tmp_path):
    write(tmp_path / "in", "jsonl")
    spec = FileSource(tmp_path / "in", Order).spec()
    earlier = {name: value for name, value in spec.config.items() if name != "timestamp_unit"}
    load_factory(spec.factory).validate(msgspec.structs.replace(spec, config=earlier))


def test_times_are_utc(tmp_path):
    class Event(Schema):
        ts: dt.datetime

    (tmp_path / "in").write_text('{"ts": "2024-05-01T12:00:00+02:00"}\n')
    reader = open_reader(FileSource(tmp_path / "in", Event))
    (batch,) = reader.poll(10).batches
    reader.close()
    assert batch.data.to_pylist() == [{"ts": dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)}]


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "csv"])
def test_a_paused_file_is_closed_and_goes_on_where_it_was_while_others_are_opened(tmp_path, file_format):
    names = [f"{number:02}.{file_format}" for number in range(20)]
    for number, name in enumerate(names):
        write(tmp_path / name, file_format, [{**row, "user_id": 1000 * number + row["user_id"]} for row in ROWS])
    reader = open_reader(FileSource(str(tmp_path), schema=Order, format=file_format))
    found, paths = [], [str(tmp_path / name) for name in names]

    def take():
        result = reader.poll(160)
        found.extend(row["user_id"] for batch in result.batches for row in batch.data.to_pylist())
        return {split_id for batch in result.batches for split_id in batch.split_ids}

    first = take()
    assert first == set(paths[:16]), "so many are open at a time"
    reader.pause_or_resume_splits(tuple(paths[:16]), ())
    assert take() == set(paths[16:])
    reader.pause_or_resume_splits((), tuple(paths[:16]))
    while not all(split.finished for split in reader.snapshot()):
        take()
    assert sorted(found) == sorted(1000 * number + row for number in range(20) for row in range(100))


@pytest.mark.parametrize("until", [{}, {"begin": True}])
def test_files_do_not_go_on_where_a_table_ends(tmp_path, until):
    spec = FileSource(str(tmp_path / "a.jsonl"), schema=Order).spec()
    begin = None if "begin" in until else {"positions": {}}
    with pytest.raises(UsageError, match="a file source cannot continue where a table ends"):
        load_factory(spec.factory).history(spec, until, None, begin)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.list_(pa.int64()), pa.float16()], ids=str)
def test_a_type_that_csv_cannot_be_read_into_is_refused_when_the_job_is_built(kind, tmp_path):
    """Else every attempt of the job would fail on it."""
    source = FileSource(tmp_path, pa.schema([("n", pa.int64()), ("odd", kind)]), format="csv")
    with pytest.raises(
        GraphError, match=rf"column 'odd' is {re.escape(str(kind))}, which the CSV reader does not support"
    ):
        source.spec()
