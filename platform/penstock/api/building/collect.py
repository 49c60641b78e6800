"""`stream.execute_and_collect()`: runs a bounded job up to one stream and reads its rows; for tests and notebooks."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from penstock.api.building.appending import append_end
from penstock.api.building.call_site import call_site
from penstock.api.building.executors import current_executor
from penstock.config.settings import failing_at_once
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.core.views import plain_schema
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.regions import endless_sources
from penstock.operators.rows.columns import without_ts
from penstock.operators.sinks.collect import read_collected, read_first

if TYPE_CHECKING:
    from penstock.api.building.flow import Flow
    from penstock.api.building.operator_handle import JobBuilder


def collect(environment: JobBuilder, flow: Flow, name: str, limit: int | None) -> pl.DataFrame:
    """Run the job with one stream as its only end and return its rows; their order is undefined.

    Rows and checkpoints are stored in a temporary folder of this machine, so every call starts without state. The first
    error of a user function ends the job. With `limit`, the job is cancelled at this number of rows.

    Raises:
        GraphError: a source is not bounded, and there is no limit; the limit is below 1.
        JobFailedError: it failed.
    """
    where = call_site()
    if limit is not None and limit < 1:
        msg = f"{where}: execute_and_collect: limit must be at least 1, not {limit}"
        raise GraphError(msg, hint="leave it out for all rows")
    schema = plain_schema(without_ts(flow.schema))
    with tempfile.TemporaryDirectory(prefix="penstock-collect-") as folder:
        rows = f"{folder}/rows"
        spec = OperatorSpec(
            uid="collect",
            name="Collect",
            kind="collect",
            config={"folder": rows, "schema": schema_to_text(schema), **({"limit": limit} if limit else {})},
        )
        end = append_end(environment.builder, flow, spec)
        try:
            graph = environment.job_graph(name, only=[end])
        finally:
            environment.builder.remove(end)
        if limit is None and (endless := endless_sources(graph)):
            msg = f"{where}: execute_and_collect would never end: {endless[0]} is not bounded"
            raise GraphError(msg, hint="give the source an end (bounded=...), or limit=100 for the first 100 rows")
        settings = msgspec.structs.replace(failing_at_once(graph.settings), checkpoint_root=f"{folder}/checkpoints")
        graph = msgspec.structs.replace(graph, settings=settings)
        executor = current_executor().executor
        if limit is None:
            executor.execute(graph)
            collected = read_collected(rows, schema)
        else:
            executor.execute(graph, enough=lambda: read_first(rows, schema, limit).num_rows == limit)
            collected = read_first(rows, schema, limit)
        return pl.DataFrame(pl.from_arrow(collected))
