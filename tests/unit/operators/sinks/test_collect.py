"""Collected results over restores and rescales."""

import pyarrow as pa

from penstock.core.elements import Barrier, Batch
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.registry import create_operator
from penstock.operators.rows.columns import with_ts
from penstock.operators.sinks.client_sinks import read_collected, read_first

SCHEMA = pa.schema([pa.field("v", pa.int64())])


def opened(bench, folder, **changes):
    operator = create_operator("collect")
    spec = OperatorSpec(uid="c", name="c", kind="collect", config={"folder": str(folder)})
    operator.open(bench.context(spec, with_ts(SCHEMA), **changes))
    return operator


def feed(operator, *values):
    data = pa.record_batch([pa.array(values), pa.array(values)], schema=with_ts(SCHEMA))
    operator.process_batch(Batch(data), 0, None)


def collected(folder):
    return read_collected(str(folder), SCHEMA).column("v").to_pylist()


def test_rows_come_back_without_event_time(bench, out, tmp_path):
    operator = opened(bench, tmp_path / "r")
    assert collected(tmp_path / "r") == []
    feed(operator, 1, 2)
    feed(operator, 3)
    operator.finish(out)
    assert collected(tmp_path / "r") == [1, 2, 3]


def test_a_restore_drops_what_came_after_its_checkpoint(bench, out, tmp_path):
    operator = opened(bench, tmp_path)
    feed(operator, 1)
    operator.snapshot(Barrier(1), out)
    feed(operator, 2)
    operator.close()
    again = opened(bench, tmp_path, restored_checkpoint=1)
    feed(again, 2, 3)
    again.close()
    assert collected(tmp_path) == [1, 2, 3]


def test_a_start_from_nothing_drops_everything_of_its_subtasks(bench, tmp_path):
    for subtask in (0, 1, 2):
        operator = opened(bench, tmp_path, subtask=subtask, parallelism=3)
        feed(operator, subtask)
        operator.close()
    opened(bench, tmp_path, subtask=0, parallelism=2)
    assert collected(tmp_path) == [1]


def test_a_limit_bounds_each_file_and_is_read_while_it_is_written(bench, tmp_path):
    operator = create_operator("collect")
    spec = OperatorSpec(uid="c", name="c", kind="collect", config={"folder": str(tmp_path), "limit": 4})
    operator.open(bench.context(spec, with_ts(SCHEMA)))
    assert first(tmp_path, 4) == []
    feed(operator, 1, 2, 3)
    assert first(tmp_path, 2) == [1, 2]
    feed(operator, 4, 5)
    feed(operator, 6)
    assert first(tmp_path, 9) == [1, 2, 3, 4]
    operator.close()
    assert collected(tmp_path) == [1, 2, 3, 4]


def test_what_stands_before_a_half_written_batch_is_read(bench, tmp_path):
    operator = opened(bench, tmp_path)
    feed(operator, 1)
    feed(operator, 2)
    operator.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    assert first(tmp_path, 9) == [1]


def first(folder, limit):
    return read_first(str(folder), SCHEMA, limit).column("v").to_pylist()
