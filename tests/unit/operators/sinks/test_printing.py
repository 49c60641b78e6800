"""Rows as lines on standard output."""

import json
from datetime import UTC, datetime

import pyarrow as pa

from penstock.core.elements import Batch
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.registry import create_operator
from penstock.operators.rows.columns import with_ts

SCHEMA = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("share", pa.float64()), ("raw", pa.binary())]
)


def test_each_row_is_a_line_of_json_after_the_name(bench, out, capsys):
    operator = create_operator("print")
    spec = OperatorSpec(uid="p", name="p", kind="print", config={"name": "totals"})
    operator.open(bench.context(spec, with_ts(SCHEMA)))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"user": "ann\n", "at": at, "share": float("nan"), "raw": b"x", "__ts": 1},
        {"user": None, "at": None, "share": 0.5, "raw": None, "__ts": 2},
    ]
    operator.process_batch(Batch(pa.RecordBatch.from_pylist(rows, schema=with_ts(SCHEMA))), 0, out)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in lines] == ["totals> ", "totals> "]
    assert json.loads(lines[0][8:]) == {"user": "ann\n", "at": "2026-01-01T00:00:00Z", "share": None, "raw": "eA=="}
    assert json.loads(lines[1][8:]) == {"user": None, "at": None, "share": 0.5, "raw": None}
