"""`penstock new` and `penstock preview` of files."""

import json
import sys
import tempfile
from pathlib import Path

import polars as pl
import pytest

from penstock.cli.start.new import new
from penstock.cli.start.preview import preview
from penstock.core.errors import UsageError


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_new_project_has_a_job_with_its_test(capsys):
    new("order-totals")
    files = {path.name: path.read_text() for path in Path("order-totals").iterdir()}
    assert set(files) == {"README.md", "compose.yaml", "dag.py", "job.py", "test_job.py"}
    assert 'env.execute("order-totals")' in files["job.py"]
    assert not any("PROJECT" in text for text in files.values())
    assert "next: cd order-totals" in capsys.readouterr().out
    with pytest.raises(UsageError, match="order-totals exists already"):
        new("order-totals")


@pytest.mark.parametrize("name", ["", "9lives", "a b", "../up", "a/b"])
def test_a_name_that_is_no_folder_or_job_is_refused(name):
    with pytest.raises(UsageError, match="cannot be the name of a project"):
        new(name)
    assert not list(Path().iterdir())


def test_the_tests_of_a_new_project_pass(monkeypatch):
    new("order-totals")
    monkeypatch.syspath_prepend("order-totals")
    import test_job

    test_job.test_a_window_adds_up_the_orders_of_a_user()
    del sys.modules["test_job"]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_the_first_rows_of_a_file(suffix, capsys):
    rows = pl.DataFrame({"user": ["ann", "bob", "cleo"], "amount": [5, 7, 9]})
    write = {"parquet": rows.write_parquet, "jsonl": rows.write_ndjson, "csv": rows.write_csv}
    write[suffix](f"rows.{suffix}")
    preview(f"rows.{suffix}", limit=2)
    shown = capsys.readouterr().out
    assert ("ann" in shown, "bob" in shown, "cleo" in shown) == (True, True, False)
    preview(f"rows.{suffix}", limit=1, json=True)
    assert capsys.readouterr().out == '{"user":"ann","amount":5}\n'


def test_the_first_rows_of_a_folder_are_those_of_its_files_in_order(capsys):
    folder = Path("parts")
    folder.mkdir()
    (folder / ".hidden").write_text("x")
    for name, lines in (("b", '{"n":3,"more":1}\n{"n":4}\n'), ("a", '{"n":1}\n{"n":2}\n'), ("0", "")):
        (folder / f"{name}.jsonl").write_text(lines)
    preview("parts", limit=3, json=True)
    assert [json.loads(line)["n"] for line in capsys.readouterr().out.splitlines()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("rows.parquet", "there is no file rows.parquet"),
        ("rows.txt", "rows.txt has no known format"),
        ("broken.parquet", "broken.parquet cannot be read"),
        ("nothing", "there is no file in nothing"),
        ("mixed", "mixed has files of several formats: .csv, .jsonl"),
        ("broken.jsonl", "broken.jsonl cannot be read as .jsonl: line 3: .+; text b'{\"a\": broken'"),
        ("kafka://", "names no broker and topic"),
        ("kafka://127.0.0.1:9092", "names no broker and topic"),
    ],
)
def test_what_cannot_be_shown_is_told(source, message):
    Path("rows.txt").write_text("x")
    Path("broken.parquet").write_text("x")
    Path("broken.jsonl").write_text('{"a": 1}\n\n{"a": broken\n{"a": 2}\n')
    Path("nothing").mkdir()
    Path("mixed").mkdir()
    for name in ("a.csv", "b.jsonl"):
        (Path("mixed") / name).write_text("")
    with pytest.raises(UsageError, match=message):
        preview(source, limit=2)
