"""Which outgoing edges combine their rows."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN
from penstock.task.chain.chain import combine_outputs

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("__all", "v", TS_COLUMN)])


@pytest.mark.parametrize(
    ("channels", "of_all", "combine", "combines"),
    [(1, False, "exact", False), (1, True, "exact", True), (3, False, "exact", True), (1, True, "off", False)],
)
def test_one_channel_combines_only_for_windows_over_all_rows(channels, of_all, combine, combines):
    config = {
        "key": ["__all"],
        "window": {"kind": "tumbling", "size_us": 1000},
        "aggregates": [{"fn": "sum", "column": "v", "alias": "total"}],
        **({"of_all": True} if of_all else {}),
    }
    found = []
    output = SimpleNamespace(
        spec=SimpleNamespace(combine=config), channels=range(channels), schema=SCHEMA, combine_with=found.append
    )
    combine_outputs([output], JobSettings(combine=combine, combine_min_rows=1, combine_ratio=0.5))
    assert len(found) == combines
    for combiner in found:
        rows = pa.RecordBatch.from_pylist([{"__all": 0, "v": v, TS_COLUMN: 10 * v} for v in range(200)], schema=SCHEMA)
        assert combiner.combine(rows).num_rows == 2, "a row a window"
