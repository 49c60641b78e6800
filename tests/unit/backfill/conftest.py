"""A catalog with a table of Iceberg, in the test's folder; how many rows a backfill would read of one."""

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.concurrent import ExecutorFactory

from penstock.backfill.table_plan import WHOLE, open_table

ROWS = pa.table({"a": pa.array([1, 2], pa.int64())})


@pytest.fixture
def lake(tmp_path):
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    yield catalog
    catalog.close()
    ExecutorFactory.get_or_create().shutdown()  # one for the whole process, with threads that last
    ExecutorFactory._instance = None


@pytest.fixture
def table(lake):
    made = lake.create_table("shop.rows", ROWS.schema)
    made.append(ROWS)
    return made


def rows(uri, schema=ROWS.schema):
    chunks = open_table("table", (uri,), schema, None).chunks
    return sum(chunk.rows for chunk in chunks[WHOLE])
