"""A backfill by the command line from a table that an Iceberg catalog names."""

import json
import os
import subprocess
import sys

import pytest
from tests.spark.golden import Golden
from tests.unit.backfill.conftest import rows
from tests.unit.backfill.test_iceberg import CUTS, archived

from penstock.core.errors import ConnectorError, UsageError


def backfill(golden, history, environment):
    words = golden.command(CUTS, "--history", history, "--offsets", "orders=partition,offset")
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **golden.environment, **environment}, cwd=golden.folder, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip


def test_a_catalog_of_pyiceberg_s_configuration_is_asked_for_the_table(lake, tmp_path):
    golden = Golden("windows", tmp_path, rows=300)
    made = archived(lake, golden, (40, 40, 40))
    done = backfill(
        golden, "orders=iceberg://lake/shop.orders", {"PYICEBERG_CATALOG__LAKE__URI": lake.properties["uri"]}
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    snapshot = made.current_snapshot().snapshot_id
    assert told["histories"]["orders"] == [f"iceberg://lake/shop.orders?snapshot={snapshot}"]
    assert told["tables"]["orders"] == {f"orders-{split}": [0, 40] for split in range(3)}
    assert golden.staged(told["savepoint"]) == golden.expected(CUTS, golden.watermark(CUTS))


def test_a_table_that_its_catalog_has_not_is_one_error(lake, tmp_path):
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n    uri: {lake.properties['uri']}\n")
    home = {"PYICEBERG_HOME": str(tmp_path)}
    done = backfill(Golden("windows", tmp_path, rows=300), "orders=iceberg://lake/shop.order", home)
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "Iceberg catalog 'lake' has no table 'shop.order'" in said
    assert "Traceback" not in said
    with pytest.raises(ConnectorError, match="Iceberg catalog 'nowhere' cannot be read: "):
        rows("iceberg://nowhere/shop.rows")
    with pytest.raises(UsageError, match="iceberg://lake/rows names no table"):
        rows("iceberg://lake/rows")
