"""What the options about tables mean, and which make no sense."""

import pytest

from penstock.backfill.table_plan import Offsets
from penstock.cli.start.backfill import parse_cut_over, parse_tables, parse_until
from penstock.core.errors import UsageError


def test_tables_by_source():
    found = parse_tables(["a=s3://lake/a", "b=x=1/y", "a=more.parquet"], ["a=p,o", "b=p,o,t"], ["b"])
    assert [(table.uid, table.uris, table.sparse) for table in found] == [
        ("a", ("s3://lake/a", "more.parquet"), False),
        ("b", ("x=1/y",), True),
    ]
    assert found[0].offsets == Offsets(partition="p", offset="o")
    assert found[1].offsets == Offsets(partition="p", offset="o", topic="t")
    assert parse_tables(None, None, None) == ()
    assert parse_tables(["a=x"], None, None)[0].offsets is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((["a"], None, None), "--history 'a' is malformed.*UID=URI"),
        ((["a=x"], ["a=p"], None), "--offsets 'a=p' names no columns"),
        ((["a=x"], ["a=p,o,t,u"], None), "names no columns"),
        ((["a=x"], ["b=p,o"], None), "'b' has no table"),
        ((["a=x"], None, ["a"]), "--sparse a needs offsets"),
    ],
)
def test_what_makes_no_sense(given, says):
    with pytest.raises(UsageError, match=says):
        parse_tables(*given)


def test_cuts():
    assert (parse_until("latest"), parse_until("cut-over")) == ({}, {"begin": True})
    assert parse_until("orders-0=5,a/orders-1=7") == {"positions": {"orders-0": 5, "a/orders-1": 7}}
    assert parse_cut_over(None) == {}
    assert parse_cut_over("1970-01-01T00:00:05") == {"timestamp": 5_000}
    for text in ("latest", "orders-0=x"):
        with pytest.raises(UsageError, match=r"--cut-over '.*' is no"):
            parse_cut_over(text)
